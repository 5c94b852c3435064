"""A comparison as one HTML page that opens offline: no scripts, nothing loaded from elsewhere."""

from collections.abc import Mapping
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.compare.charts import charts
from specdec_onnx.tui.compare.wording import choice_line, crossover_lines, energy_line, nodes_text
from specdec_onnx.tui.inventory import gigabytes


def require_charts() -> None:
    """Raise SpecdecError when the library that draws the charts is missing."""
    if find_spec("matplotlib") is None:
        raise SpecdecError(
            "matplotlib is not installed",
            "it draws the charts of --html",
            "pip install 'specdec-onnx[report]'",
        )


def page(report: Mapping[str, Any]) -> str:
    """The whole page; every text in it is escaped."""
    from jinja2 import Environment

    source = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, trim_blocks=True).from_string(source)
    return template.render(
        report=report,
        made=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M"),
        choice=choice_line(report),
        crossovers=crossover_lines(report),
        energy=energy_line(report),
        charts=list(charts(report)),
        nodes=nodes_text,
        gigabytes=gigabytes,
    )
