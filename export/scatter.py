"""Trimmed logits spread over a whole vocabulary when the kept ids lie in many pieces."""

import numpy as np

from specdec_onnx.export.graph import Graph
from specdec_onnx.export.vocabulary import Trimming


def scatter(graph: Graph, trimming: Trimming, vocabulary: int, padding: float) -> None:
    """From `trimmed_logits` [1, S, kept] to `logits` [1, S, vocabulary], `padding` where no id is kept."""
    first, end = trimming.ranges[0]
    rest = trimming.ids()[end - first :]
    lengths = graph.constant("piece_lengths", np.array([end - first, len(rest)]))
    head, tail = graph.nodes("Split", ["trimmed_logits", lengths], ["piece.head", "piece.tail"], axis=-1)
    pads = graph.constant("piece.pads", np.array([0, 0, first, 0, 0, vocabulary - end]))
    rows = graph.node("Pad", [head, pads, graph.constant("padding", np.float32(padding))], "piece.rows")
    places = graph.constant("piece.ids", rest.astype(np.int32)[None, None])
    everywhere = graph.node("Expand", [places, graph.node("Shape", [tail], "piece.shape")], "piece.places")
    graph.node("ScatterElements", [rows, everywhere, tail], "logits", axis=2)
