"""The A/B: one question, answered plainly and speculatively, side by side."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from specdec_onnx.models.text import on_one_line, printable, rate
from specdec_onnx.tui.chat.engine_client import EngineClient
from specdec_onnx.tui.chat.reply import Reply
from specdec_onnx.tui.chat.session import Request
from specdec_onnx.tui.chat.widgets.answer import token_content

FRAMES = 10
SIDES = ("plain", "auto")
TITLES = {"plain": "plain", "auto": "speculative"}
WAITING = {"plain": "starting", "auto": "waiting for plain"}


class CompareScreen(ModalScreen[None]):
    """Answers plainly, then speculatively, with the same engine and prompt; greedy, so the texts must agree."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,f5", "leave", "Close")]

    def __init__(self, engine: EngineClient, request: Request, question: str) -> None:
        super().__init__()
        self._engine, self._question = engine, question
        self._sampled = request.settings.temperature > 0
        greedy = replace(request.settings, temperature=0.0)
        self._requests = [replace(request, settings=greedy, mode=mode, fresh=True) for mode in SIDES]
        self.replies: list[Reply] = []

    def compose(self) -> ComposeResult:
        """Two columns and the verdict."""
        with Vertical(classes="dialog tall") as box:
            box.border_title = Content(f"A/B: {on_one_line(self._question)}")
            box.border_subtitle = "Esc closes"
            with Horizontal(id="sides"):
                for mode in SIDES:
                    with VerticalScroll(id=mode, classes="side") as side:
                        side.border_title = TITLES[mode]
                        side.border_subtitle = WAITING[mode]
                        yield Static("", classes="side-text")
            yield Static("", id="verdict")

    def on_mount(self) -> None:
        """Start with the plain side; both scroll with their text."""
        for side in self.query(VerticalScroll):
            side.anchor()
        self._next()
        self._timer = self.set_interval(1 / FRAMES, self.tick)

    def _next(self) -> None:
        request = self._requests[len(self.replies)]
        self.replies.append(Reply(0, request))
        self._engine.answer(self.replies[-1])

    def tick(self) -> None:
        """Draw the text so far; start the second side when the first has ended."""
        reply = self.replies[-1]
        self._draw(reply)
        if reply.reason is None:
            return
        if len(self.replies) < len(SIDES) and reply.reason not in ("cancelled", "error"):
            self._next()
            return
        self._timer.stop()
        self.query_one("#verdict", Static).update(verdict(self.replies, sampled=self._sampled))

    def _draw(self, reply: Reply) -> None:
        side = self.query_one(f"#{reply.request.mode}", VerticalScroll)
        side.query_one(Static).update(token_content(reply.pieces))
        side.border_subtitle = self._progress(reply)
        if reply.reason is None:
            self.query_one("#verdict", Static).update(self._overview())

    def _progress(self, reply: Reply) -> str:
        """How far an answer is; the second is expected to be as long as the first."""
        if not reply.pieces:
            done, total = reply.reading or (0, 0)
            return f"reading the prompt: {done:,} of {total:,} tok" if total else "reading the prompt"
        new = f"{reply.statistics()['new_tokens']:,}"
        first = self.replies[0]
        if reply is not first and reply.reason is None:
            new += f" of {first.statistics()['new_tokens']:,}"
        return f"{new} tok · {speed(reply)}"

    def _overview(self) -> Content:
        number = len(self.replies)
        return Content.assemble(
            (f"{number} of {len(SIDES)}: {TITLES[SIDES[number - 1]]} answers", "bold"),
            (f", at most {self._requests[0].settings.max_new_tokens:,} tok", "$text-muted"),
        )

    def action_leave(self) -> None:
        """Stop what still runs."""
        for reply in self.replies:
            reply.cancel()
        self.dismiss(None)


def speed(reply: Reply) -> str:
    """`42 tok/s · 1.6 s`."""
    statistics = reply.statistics()
    return f"{rate(statistics['decode_tokens_per_second'])} · {statistics['seconds']:.1f} s"


def verdict(replies: Sequence[Reply], *, sampled: bool) -> Content:
    """Both times, the ratio, and whether the texts are the same."""
    if (failed := next((reply.error for reply in replies if reply.error is not None), None)) is not None:
        return Content.assemble((printable(str(failed)), "$text-error"))
    if len(replies) < len(SIDES):
        return Content("stopped")
    plain, fast = (reply.statistics() for reply in replies)
    before, after = plain["seconds"], fast["seconds"]
    ratio = before / after if after else 0.0
    times = f"{before:.1f} s plain, {after:.1f} s speculative: {ratio:.2f}× as fast. "
    same = replies[0].text == replies[1].text
    text = (
        (f"The texts are identical ({fast['new_tokens']} tok).", "bold $text-success")
        if same
        else (
            f"The texts differ from character {first_difference(*(reply.text for reply in replies))} onward.",
            "bold $text-error",
        )
    )
    note = " Compared with greedy decoding: sampled answers vary from run to run." if sampled else ""
    return Content.assemble((times, "bold"), text, (note, "$text-muted"))


def first_difference(first: str, second: str) -> int:
    """Index of the first character that differs."""
    pairs = zip(first, second, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
