"""How long the chat's event loop stands still, on a real pair: `python tests/frame_gap.py PAIR [TOKENS]`.

Beside the time on the clock stands what a quiet machine would have seen: without the wait for a core, where Linux
tells. The rest of a gap is the main thread's own work and its wait for Python's lock.
"""

import asyncio
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from support.chat_app import chat_app, screen_of, until
from textual.pilot import Pilot

from specdec_onnx.tui.chat.app import ChatApp
from specdec_onnx.tui.chat.engine_client import open_process

TICK = 0.005
PATIENCE = 1200
QUESTION = (
    "Write a Markdown tutorial on sorting in Python: a heading and a list for each of three algorithms, "
    "each with a code block and a table of its costs."
)
SCHEDULER = Path("/proc/thread-self/schedstat")


def waited_for_a_core() -> float:
    """Seconds that this thread was ready to run and wasn't."""
    return int(SCHEDULER.read_text().split()[1]) / 1e9 if SCHEDULER.exists() else 0.0


def phase(app: ChatApp) -> str:
    """What the chat is at."""
    reply = screen_of(app).answering.reply
    if reply is None:
        return "loading" if app.services.engine.state.loading else "idle"
    return "answering" if reply.rounds else "reading"


async def watch(app: ChatApp, gaps: dict[str, list[tuple[float, float, float]]]) -> None:
    """Wake up every few milliseconds and note by how much it was too late: clock, without queueing, own work."""
    loop = asyncio.get_running_loop()
    while True:
        start, queued, worked, during = loop.time(), waited_for_a_core(), time.thread_time(), phase(app)
        await asyncio.sleep(TICK)
        late = loop.time() - start - TICK
        queued, worked = waited_for_a_core() - queued, time.thread_time() - worked
        gaps[during].append((late, late - queued, worked))


async def answer(app: ChatApp, pilot: Pilot[None], tokens: int) -> None:
    """Ask two questions: the first answer's widgets are the first of their kind."""
    screen = screen_of(app)
    await until(lambda: app.services.engine.state.session, PATIENCE)
    screen.conversation.settings = replace(screen.conversation.settings, max_new_tokens=tokens)
    for question in (QUESTION, "Now in C."):
        screen.prompt.fill(question)
        await pilot.press("enter")
        await until(lambda: screen.answering.busy)
        await until(lambda: not screen.answering.busy, PATIENCE)
        await asyncio.sleep(0.3)


async def main(pair: Path, tokens: int) -> None:
    """Chat, watch, print a line for each phase."""
    gaps: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as home:
        app = chat_app(Path(home), opener=open_process)
        app.services.extra_pairs = [pair]
        async with app.run_test(size=(100, 30)) as pilot:
            watcher = asyncio.create_task(watch(app, gaps))
            await answer(app, pilot, tokens)
            watcher.cancel()
    for name, found in gaps.items():
        for at, kind in enumerate(("clock", "quiet", "own")):
            row = sorted(gap[at] * 1e3 for gap in found)
            middle, high = row[len(row) // 2], row[int(len(row) * 0.99)]
            print(
                f"{name:10} {kind:6} p50 {middle:6.1f}  p99 {high:6.1f}  max {row[-1]:6.1f} ms  n {len(row)}"
            )


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 200))
