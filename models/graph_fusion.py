"""Nodes of a decoder's graph that our kernels compute as one, joined in memory without the `onnx` package."""

import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdec_onnx.models.protobuf import Message, last_text, read_fields, read_message, read_text, write_field

DOMAIN, GATED = "specdec", "GatedMatMulNBits"
"""Our operator: a MatMulNBits that multiplies the second half of its output with the first half's SiLU."""

_GRAPH, _OPSET = 7, 8
_NODE, _OUTPUT = 1, 12
_INPUTS, _OUTPUTS, _OPERATOR, _ATTRIBUTES, _DOMAIN = 1, 2, 4, 5, 7
_LAST = (1 << 64) - 1
"""The last axis, -1, as the file has it."""
_PANELS = 64
"""Columns that our kernels compute together: 32 of the gate and the 32 that pass it."""


def _float(value: Any) -> float:
    return float(struct.unpack("<f", value)[0])


@dataclass(frozen=True, slots=True)
class _Node:
    """A node as the file has it, and its fields."""

    raw: Any
    fields: Message

    @property
    def operator(self) -> str:
        return last_text(self.fields[_OPERATOR])

    @property
    def inputs(self) -> list[str]:
        return list(map(read_text, self.fields[_INPUTS]))

    @property
    def outputs(self) -> list[str]:
        return list(map(read_text, self.fields[_OUTPUTS]))

    @property
    def attributes(self) -> dict[str, Any]:
        """Floats (field 2) and whole numbers (field 3) by name."""
        found = map(read_message, self.fields[_ATTRIBUTES])
        return {last_text(each[1]): next(iter([*map(_float, each[2]), *each[3]]), None) for each in found}


def with_gated_products(content: bytes) -> bytes | None:
    """The graph with each MatMulNBits, Split, SiLU and Mul of a gated layer as one node; None if there are none.

    `content` is that of a valid .onnx file.
    """
    fields = [(number, value, bytes(raw)) for number, value, raw in read_fields(content)]
    graphs = [_with_gates(bytes(value)) for number, value, _ in fields if number == _GRAPH]
    if len(graphs) != 1 or graphs[0] is None:
        return None
    parts = [write_field(_GRAPH, graphs[0]) if number == _GRAPH else raw for number, _, raw in fields]
    own = write_field(1, DOMAIN.encode()) + write_field(2, 1)
    return b"".join([*parts, write_field(_OPSET, own)])


def _with_gates(graph: bytes) -> bytes | None:
    fields = list(read_fields(graph))
    nodes = {
        at: _Node(value, read_message(value))
        for at, (number, value, _) in enumerate(fields)
        if number == _NODE
    }
    uses = Counter(name for node in nodes.values() for name in node.inputs)
    uses.update(last_text(read_message(value)[1]) for number, value, _ in fields if number == _OUTPUT)
    readers = {name: at for at, node in nodes.items() for name in node.inputs if uses[name] == 1}
    replaced = dict[int, bytes]()
    for at, node in nodes.items():
        if _may_be_gated(node) and (chain := _gate_after(node, nodes, readers)):
            replaced |= dict.fromkeys(chain, b"")
            replaced[at] = write_field(_NODE, _gated(node, nodes[chain[-1]].outputs))
    if not replaced:
        return None
    return b"".join(replaced.get(at, bytes(raw)) for at, (_, _, raw) in enumerate(fields))


def _may_be_gated(node: _Node) -> bool:
    return node.operator == "MatMulNBits" and node.attributes.get("N", 1) % _PANELS == 0


def _gate_after(node: _Node, nodes: Mapping[int, _Node], readers: Mapping[str, int]) -> Sequence[int]:
    """Where the Split, the SiLU and the Mul are that alone read what `node` computes; empty if they do not."""

    def reader(name: str, operator: str) -> int | None:
        at = readers.get(name)
        return at if at is not None and nodes[at].operator == operator else None

    split = reader(node.outputs[0], "Split")
    if split is None or len(nodes[split].inputs) != 1 or nodes[split].attributes.get("axis") != _LAST:
        return ()
    gate, value = nodes[split].outputs if len(nodes[split].outputs) == 2 else ("", "")
    silu, product = reader(gate, "QuickGelu"), reader(value, "Mul")
    if silu is None or product is None or nodes[silu].attributes.get("alpha") != 1.0:
        return ()
    return (split, silu, product) if reader(nodes[silu].outputs[0], "Mul") == product else ()


def _gated(product: _Node, outputs: Sequence[str]) -> bytes:
    own = {_OPERATOR: GATED, _DOMAIN: DOMAIN}
    kept = (bytes(raw) for number, _, raw in read_fields(product.raw) if number not in (_OUTPUTS, *own))
    written = [(_OUTPUTS, name) for name in outputs] + list(own.items())
    return b"".join([*kept, *(write_field(number, text.encode()) for number, text in written)])
