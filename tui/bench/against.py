"""The engine beside another program that ran the same prompts in the same run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.pair import compatibility, open_pair
from specdec_onnx.tui.bench.genai import NAME, Genai
from specdec_onnx.tui.bench.genai_worker import SETTINGS
from specdec_onnx.tui.bench.machine import describe_pair
from specdec_onnx.tui.bench.measure import Round
from specdec_onnx.tui.bench.processor import physical_cores
from specdec_onnx.tui.bench.report import identical, summarize

if TYPE_CHECKING:
    from specdec_onnx.runtime.engine import Engine
    from specdec_onnx.runtime.sampling import Parameters

KEPT = (
    "decode_tokens_per_second",
    "end_to_end_tokens_per_second",
    "time_to_first_token_ms",
    "tokens_per_round",
    "acceptance_rate",
    "speedup",
    "identical_to_plain",
    "spread",
    "new_tokens",
    "decode_seconds",
    "prefill_seconds",
)
"""What of a mode's figures another program can tell."""


def check_settings(settings: "Parameters", *, devices: set[str | None], all_turns: bool) -> None:
    """Raise SpecdecError for what both programs cannot do alike."""
    from specdec_onnx.runtime.sampling import Parameters

    if settings != Parameters(max_new_tokens=settings.max_new_tokens, seed=settings.seed):
        raise SpecdecError(
            f"--against {NAME} compares greedy answers", "sampling and stop texts would differ by design"
        )
    if devices - {"cpu", None} or all_turns:
        flag = "--all-turns" if all_turns else "--device"
        raise SpecdecError(
            f"--against {NAME} and {flag} exclude each other", "it is run on the CPU, turn by turn"
        )


def opponent(engine: "Engine", folder: Path | None, threads: int) -> Genai:
    """Start the other program with the engine's pair, or with another export of it in `folder`.

    `threads` 0 means the physical cores, as it does for the engine: by itself the program would take one.
    """
    pair = engine.pair
    if folder:
        pair = open_pair(folder)
        if problems := compatibility(engine.pair.target, pair.target).problems:
            raise SpecdecError(
                f"{folder} is another model", "; ".join(problems), "give an export of the same model"
            )
    return Genai(pair, threads or physical_cores())


def figures(
    genai: Genai, engine: "Engine", rounds: Sequence[Round], ours: Mapping[str, Any]
) -> dict[str, Any]:
    """The contract's `against.ort-genai`; `ours` are the figures of the engine's auto mode.

    `speed_ratio` is our auto over its best mode, in decoded tokens per second. `identical_to_plain` compares with its own
    plain decoding, `identical_to_ours` with ours: None if it runs another export, whose answers differ by right.
    """
    names = {mode: f"{NAME} {mode}" for mode in genai.modes}
    summaries = summarize(rounds, names.values(), comparable=True)
    same_pair = genai.pair.target.graph.samefile(engine.pair.target.graph)
    modes = {mode: _mode(summaries[name], mode) for mode, name in names.items()}
    for mode, name in names.items():
        same = sum(identical(round_, name, "plain") for round_ in rounds)
        modes[mode]["identical_to_ours"] = same if same_pair else None
    best = max(modes, key=lambda mode: modes[mode]["decode_tokens_per_second"])
    whole = max(mode["end_to_end_tokens_per_second"] for mode in modes.values())
    return {
        "version": genai.version,
        "threads": genai.threads,
        "pair": describe_pair(genai.pair),
        "modes": modes,
        "best_mode": best,
        "speed_ratio": _ratio(ours["decode_tokens_per_second"], modes[best]["decode_tokens_per_second"]),
        "end_to_end_ratio": _ratio(ours["end_to_end_tokens_per_second"], whole),
        "peak_memory_bytes": genai.peak_memory_bytes,
    }


def _mode(summary: Mapping[str, Any], mode: str) -> dict[str, Any]:
    return {key: summary[key] for key in KEPT} | {"settings": SETTINGS[mode]}


def _ratio(ours: float, theirs: float) -> float | None:
    return round(ours / theirs, 3) if theirs else None
