"""A comparison's findings as sentences; one wording for the terminal and the page."""

from collections.abc import Mapping
from typing import Any


def choice_line(report: Mapping[str, Any]) -> str:
    """`Choose cpu, mode auto: …`; what is missing where nothing was measured."""
    choice = report["choice"]
    if choice is None:
        return "No place could be measured."
    return f"Choose {choice['place']}, mode {choice['mode']}: {choice['why']}."


def crossover_lines(report: Mapping[str, Any]) -> list[str]:
    """Which place answers soonest from which answer length on, for each prompt length, then the first token's."""
    crossovers = report["crossovers"]
    lines = [
        f"{each['length']}-token prompt: {_segments(each['segments'])}" for each in crossovers["by_answer"]
    ]
    if first := crossovers["first_token"]:
        parts = [f"{first[0]['place']} first"] + [
            f"{each['place']} from {each['from_prompt_tokens']} tokens of prompt on" for each in first[1:]
        ]
        lines.append(
            "first token: " + (", ".join(parts) if len(parts) > 1 else f"always {first[0]['place']}")
        )
    return lines


def _segments(segments: list[Mapping[str, Any]]) -> str:
    names = [f"{each['place']} ({each['mode']})" for each in segments]
    if len(names) == 1:
        return f"{names[0]} is the fastest, however long the answer"
    later = [
        f"{name} from {each['from_tokens']} tokens on"
        for name, each in zip(names[1:], segments[1:], strict=True)
    ]
    return f"{names[0]} is the fastest for the shortest answers, {', '.join(later)}"


def energy_line(report: Mapping[str, Any]) -> str:
    """Whether energy was counted, and why not."""
    energy = report["energy"]
    return f"Energy: {energy['note']}." if energy["counted"] else f"No energy figures: {energy['note']}."


def nodes_text(place: Mapping[str, Any]) -> str:
    """`target 312 CPU; draft 268 CPU`: how many nodes of each graph run where."""
    parts = []
    for role, counts in place["nodes"].items():
        listed = ", ".join(
            f"{count} {name.removesuffix('ExecutionProvider')}" for name, count in counts.items()
        )
        parts.append(f"{role} {listed}")
    return "; ".join(parts) or "–"
