"""Plain and speculative decoding of one prompt, as a picture in the terminal."""

from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specdec_onnx.runtime.statistics import Statistics
from specdec_onnx.tui.bench.contestant import Run
from specdec_onnx.tui.wording import percent, rate, times

BAR_WIDTH = 40


def side_by_side(plain: Run, fast: Run) -> RenderableType:
    """A bar for each speed, a column for each answer, and whether they are the same."""
    before, after = plain.turns[0], fast.turns[0]
    return Group(
        Text(),
        _bars(plain, fast),
        Text(),
        _columns(plain, fast),
        Text(),
        _verdict(plain, fast, _ratio(before, after)),
    )


def _ratio(before: Statistics, after: Statistics) -> float:
    speed = before.decode_tokens_per_second
    return after.decode_tokens_per_second / speed if speed else 0.0


def _bars(*runs: Run) -> Table:
    table = Table.grid(padding=(0, 2))
    fastest = max(run.turns[0].decode_tokens_per_second for run in runs) or 1.0
    for run, color in zip(runs, ("bright_black", "green"), strict=True):
        speed = run.turns[0].decode_tokens_per_second
        table.add_row(run.mode, Bar(fastest, 0, speed, width=BAR_WIDTH, color=color), rate(speed))
    return table


def _columns(*runs: Run) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column()
    for run in runs:
        table.add_column(run.mode, justify="right")
    for name, cells in _rows([run.turns[0] for run in runs]).items():
        table.add_row(name, *cells)
    return table


def _rows(answers: list[Statistics]) -> dict[str, list[str]]:
    return {
        "speed": [rate(each.decode_tokens_per_second) for each in answers],
        "answer": [f"{each.new_tokens} tok in {each.decode_seconds:.1f} s" for each in answers],
        "first token": [f"{each.time_to_first_token_ms / 1000:.2f} s" for each in answers],
        "tokens per round": [f"{each.tokens_per_round:.2f}" for each in answers],
        "drafts accepted": [percent(each.acceptance_rate) if each.drafted else "–" for each in answers],
    }


def _verdict(plain: Run, fast: Run, ratio: float) -> Text:
    if plain.tokens == fast.tokens:
        return Text(
            f"{times(ratio)} as fast, outputs identical: {len(plain.tokens)} of {len(plain.tokens)} tokens",
            "bold green",
        )
    pairs = zip(plain.tokens, fast.tokens, strict=False)
    same = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(plain.tokens), len(fast.tokens)))
    return Text(f"{times(ratio)} as fast, but the outputs differ from token {same + 1} on", "bold red")
