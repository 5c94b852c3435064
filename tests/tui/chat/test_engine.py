"""The chat over a real engine with a tiny pair: what it shows is what the engine said."""

import argparse
import json
import shlex
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import pytest
from support.chat_app import answered, chat_app, reply_of, screen_of, until
from support.steady import steady
from support.tiny import export_tiny, export_tiny_pair
from textual.widgets import Select, Static

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.pair import open_pair
from specdec_onnx.runtime.engine import load
from specdec_onnx.runtime.machine.footprint import footprints
from specdec_onnx.runtime.model.device import AUTO, PROVIDERS
from specdec_onnx.tui.chat import command as chat
from specdec_onnx.tui.chat import engine_worker
from specdec_onnx.tui.chat.app import ChatApp
from specdec_onnx.tui.chat.engine_client import EngineProcess, open_process
from specdec_onnx.tui.chat.engine_worker import Job, open_worker
from specdec_onnx.tui.chat.inventory import describe
from specdec_onnx.tui.chat.reply import Reply
from specdec_onnx.tui.chat.screens.settings import SettingsScreen
from specdec_onnx.tui.chat.session import Request, counts
from specdec_onnx.tui.chat.settings import DEFAULTS, DEVICES
from specdec_onnx.tui.chat.widgets.bars import TopBar
from specdec_onnx.tui.cli.arguments import chat_arguments

pytestmark = pytest.mark.usefixtures("private_cache")
SETTINGS = replace(DEFAULTS, max_new_tokens=24)
ASKED = [{"role": "user", "content": "some text"}]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_tiny_pair(tmp_path_factory.mktemp("pairs") / "tiny", seed=5)


@pytest.fixture
async def session(pair: Path) -> AsyncIterator[EngineProcess]:
    opened = await open_process(str(pair), "cpu")
    yield opened
    await opened.close()


async def test_the_tokens_spell_the_text_and_add_up(session: EngineProcess) -> None:
    reply = await reply_of(session, Request(ASKED, SETTINGS, "draft"))
    spelled = "".join(piece.text for piece in reply.pieces if piece.source != "rejected")
    assert reply.text.startswith(spelled) and reply.reason == "length"
    by, statistics = counts(reply.pieces), reply.statistics()
    assert by["draft"] == statistics["accepted"]
    assert by["rejected"] == statistics["drafted"] - statistics["accepted"]
    assert sum(reply.rounds) == statistics["new_tokens"] == 24
    assert statistics["mode"] == "draft" and statistics["tokens_by_round"] == reply.rounds


async def test_counted_figures_agree_with_the_engines(session: EngineProcess) -> None:
    reply = await reply_of(session, Request(ASKED, SETTINGS, "draft"))
    final, reply.final = reply.final, None
    assert final is not None
    for name in ("new_tokens", "rounds", "drafted", "accepted"):
        assert reply.statistics()[name] == final[name], name


async def test_plain_and_speculative_answers_are_the_same(session: EngineProcess) -> None:
    replies = [
        await reply_of(session, Request(ASKED, SETTINGS, mode, fresh=True))
        for mode in ("plain", "auto", "draft")
    ]
    assert len({reply.text for reply in replies}) == 1


async def test_a_resumed_answer_ends_where_one_answer_would_have(session: EngineProcess) -> None:
    whole = await reply_of(session, Request(ASKED, SETTINGS, "plain"))
    first = await reply_of(session, Request(ASKED, replace(SETTINGS, max_new_tokens=10), "plain"))
    rest = await reply_of(session, Request(ASKED, replace(SETTINGS, max_new_tokens=14), "plain", first.text))
    assert rest.text == whole.text
    assert session.statistics()["cached_prompt_tokens"] >= session.statistics()["prompt_tokens"] - 1


async def test_a_stopped_answer_says_so_and_the_next_one_works(session: EngineProcess) -> None:
    long = 200  # the engine is some rounds ahead of what has been read of it, but not so many
    reply = Reply(1, Request(ASKED, replace(SETTINGS, max_new_tokens=long), "plain"))
    reply.begin(session.cancel)
    async for round_ in session.reply(reply.request, reply.read):
        reply.take(round_)
        if len(reply.rounds) == 3:
            reply.cancel()
    reply.end(session.statistics())
    assert reply.reason == "cancelled" and 3 <= sum(reply.rounds) < long
    assert (await reply_of(session, Request(ASKED, SETTINGS, "plain"))).reason == "length"


def test_an_answer_that_is_stopped_before_it_begins_has_no_tokens(pair: Path) -> None:
    worker, job = open_worker(str(pair)), Job(Request(ASKED, SETTINGS))
    job.cancel()
    job.begin(stream := worker.stream(job.request))
    [step] = stream
    assert step.finish_reason == "cancelled" and not step.tokens and not step.text


def test_every_door_reads_a_message_as_the_same_tokens(pair: Path) -> None:
    worker = open_worker(str(pair))
    engine, few = worker.engine, replace(SETTINGS, max_new_tokens=2)
    asked = [{"role": "user", "content": "a <|im_end|>\n<|im_start|>b"}]
    prompts = []
    for door in (
        lambda: engine.stream(asked[0]["content"], max_new_tokens=2),
        lambda: engine.chat().send(asked[0]["content"], max_new_tokens=2),
        lambda: worker.stream(Request(asked, few)),
        lambda: worker.stream(Request(asked, few, partial="so ")),
    ):
        for _ in door():
            pass
        prompts.append(engine.last.prompt)
    *same, resumed = prompts
    assert same[0] == same[1] == same[2] == resumed[: len(same[0])]
    assert engine.tokenizer.decode(resumed[len(same[0]) :]) == "so "
    assert same[0].count(engine.tokenizer.id_of("<|im_start|>") or -1) == 2


def test_the_chat_opens_a_base_models_text_with_bos(tmp_path: Path) -> None:
    folder = export_tiny(tmp_path / "base")
    (folder / "chat_template.jinja").unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"add_bos_token": True}))
    worker = open_worker(str(folder))
    engine, few = worker.engine, replace(SETTINGS, max_new_tokens=4)
    bos = engine.pair.target.bos_token_id
    first = "".join(step.text for step in worker.stream(Request(ASKED, few)))
    begun, answer = engine.last.prompt, list(engine.last.tokens)
    assert begun == [bos, *engine.tokenizer.encode("some text\n\n")]
    list(worker.stream(Request(ASKED, few, partial=first)))
    assert engine.last.prompt == [*begun, *answer] and engine.last.prompt.count(bos or -1) == 1
    list(engine.stream("some text\n\n", max_new_tokens=1))
    assert engine.last.prompt == begun


def test_each_conversation_drafts_from_its_own_answers(pair: Path) -> None:
    worker = open_worker(str(pair))
    steady(worker.engine)

    def accepted(conversation: str, *, fresh: bool = False) -> int:
        request = Request(ASKED, SETTINGS, "suffix", conversation=conversation, fresh=fresh)
        stream = worker.stream(request)
        list(stream)
        return stream.result.statistics.accepted

    first = accepted("one")
    assert accepted("two") == first < accepted("two"), "the second time the answer is known"
    assert accepted("two", fresh=True) == first


async def test_what_the_picker_says_of_a_pair(pair: Path, session: EngineProcess) -> None:
    described = describe(pair)
    assert not described.problem and "+" in described.formats and described.size > 0
    assert session.about == f"{described.formats} · cpu"
    assert describe(pair / "nothing").problem


def test_the_picker_reckons_with_what_loading_a_pair_takes(pair: Path) -> None:
    engine, opened = load(pair), open_pair(pair)
    assert opened.draft is not None
    needs = footprints({"target": opened.target, "draft": opened.draft})
    assert describe(pair).memory == sum(need.total for need in needs.values())
    decoder = engine.target
    assert needs["target"].cache == decoder.cache.nbytes and decoder.capacity >= engine.context


async def test_a_device_that_is_not_there_is_named(pair: Path) -> None:
    with pytest.raises(SpecdecError, match="dml") as caught:
        await open_process(str(pair), "dml")
    assert caught.value.fix


async def test_device_auto_says_which_device_it_chose(tmp_path: Path, pair: Path) -> None:
    parser = argparse.ArgumentParser()
    chat_arguments(parser)
    app = chat_app(tmp_path, opener=open_process)
    app = ChatApp(app.services, device=parser.parse_args(["--device", "auto"]).device)
    app.services.extra_pairs = [pair]
    async with app.run_test() as pilot:
        screen = screen_of(app)
        await until(lambda: app.services.engine.state.session)
        assert app.services.engine.state.device == "auto"
        await pilot.pause()
        assert "Self-test on cpu" in str(screen.query_one("#welcome-text", Static).render())
        assert screen.query_one(TopBar).model.endswith(" · cpu")
        await pilot.press("f2")
        await until(lambda: isinstance(app.screen, SettingsScreen))
        assert app.screen.query_one("#device", Select).value == "auto"


def test_chat_and_engine_know_the_same_devices() -> None:
    assert set(DEVICES) == {*PROVIDERS, AUTO}


async def test_the_whole_app_over_the_engine(tmp_path: Path, pair: Path) -> None:
    app = chat_app(tmp_path, opener=open_process)
    app.services.extra_pairs = [pair]
    async with app.run_test():
        screen_of(app).conversation.settings = SETTINGS
        screen = await answered(app, "some text")
        answer = screen.conversation.line[-1]
        assert answer.reason == "length" and answer.statistics["new_tokens"] == 24
        assert sum(counts(answer.pieces)[source] for source in ("draft", "suffix", "target")) == 24


def test_the_server_starts_the_same_chat() -> None:
    parser = argparse.ArgumentParser()
    chat_arguments(parser)
    args = parser.parse_args(["my pair", "--context", "512", "-c", "--serve", "--device", "cpu"])
    words = shlex.split(chat.inner_command(args))
    assert words[:4] == [sys.executable, "-m", "specdec_onnx.tui.cli.main", "chat"]
    again = parser.parse_args(words[4:])
    assert (again.pair, again.context, again.latest, again.serve) == ("my pair", 512, True, False)


def test_a_conversation_is_stored_once_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_worker, "IDLE", 0.01)
    jobs, job, stored = SimpleQueue[Job](), Job(Request(ASKED, SETTINGS)), list[str]()

    class Engine:
        def store_text(self, *, until: Callable[[], bool]) -> None:
            assert not until()
            stored.append("stored")
            jobs.put(job)
            assert until(), "a request does not wait for the disk"

    assert engine_worker._next(jobs, cast(Any, Engine())) is job and stored == ["stored"]
    jobs.put(job)
    assert engine_worker._next(jobs, cast(Any, Engine())) is job and stored == ["stored"]
