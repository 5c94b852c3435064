"""Markdown as lines of the terminal, block by block; see `specdec_onnx.tui.widgets.markdown` for the widget."""
