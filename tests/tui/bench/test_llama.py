"""`specdec bench --against llama.cpp`, with a stand-in for llama-server, and with the real one if it is on the PATH."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.scripted_engine import ANSWER, ScriptedEngine
from support.smol import smol

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.pair import Pair
from specdec_onnx.tui.bench import llama_worker
from specdec_onnx.tui.bench.opponent import PROGRAMS, source
from specdec_onnx.tui.child import Child
from specdec_onnx.tui.cli.main import main

__all__ = ["smol"]

FAKE = Path(__file__).parents[2] / "support" / "fake_llama_server.py"
TOKENS = [sum(word.encode()) for word in ANSWER.split()]
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a script with a shebang")


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """A program that runs the stand-in."""
    program = tmp_path / "bin" / "llama-server"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    program.chmod(0o755)
    return program


@pytest.fixture
def downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of downloads, with the two files that the pair came from."""
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "downloads"
    folder.mkdir(parents=True)
    for name in ("big.gguf", "small.gguf"):
        write(folder / name)
    return folder


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, downloads: Path) -> ScriptedEngine:
    scripted = ScriptedEngine()
    target, draft = (model(downloads / name) for name in ("big.gguf", "small.gguf"))
    scripted.pair = Pair(tmp_path, target, draft)
    scripted.install(monkeypatch)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pair").mkdir()
    return scripted


def model(file: Path) -> Any:
    return SimpleNamespace(
        name=file.stem,
        weight_bytes=1,
        facts={
            "format": "int4",
            "source": {"file": file.name, "sha256": sha256(file.read_bytes()).hexdigest()},
        },
        chat_template=None,
        adds_bos=False,
        tokenizer=SimpleNamespace(encode=lambda text: [1, 2, 3]),
    )


def write(file: Path, **content: Any) -> Path:
    file.write_text(json.dumps({"answer": TOKENS} | content))
    return file


def bench(server: Path, *options: str) -> dict[str, Any]:
    asked = ["bench", "pair", "--limit", "2", "--json", "o.json", "--against", "llama.cpp"]
    assert main([*asked, "--llama-server", str(server), *options]) == 0
    figures: dict[str, Any] = json.loads(Path("o.json").read_text())
    return figures


def starts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "starts").read_text().splitlines()]


def none_runs(folder: Path) -> bool:
    """Whether every started server has ended; one that has just been killed may still need a moment."""
    for _ in range(100):
        running = [start["pid"] for start in starts(folder) if runs(start["pid"])]
        if not running:
            return True
        time.sleep(0.05)
    return False


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_report_holds_the_servers_figures(
    engine: ScriptedEngine, server: Path, downloads: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = bench(server, "--modes", "plain", "--threads", "1")
    found = figures["against"]["llama.cpp"]
    assert list(figures["modes"]) == ["plain", "auto"]  # auto is what is compared
    assert list(found["modes"]) == ["plain", "ngram", "ngram-short", "draft"]
    assert found["version"] == "1 (fake)" and found["threads"] == 1
    assert found["pair"]["target"]["name"] == "big" and found["pair"]["draft"]["name"] == "small"
    assert found["speed_ratio"] == 2.0  # ours writes 32 tokens a second, the stand-in 8 in half a second
    for mode in found["modes"].values():
        assert mode["new_tokens"] == 16 and mode["identical_to_plain"] == 2
        assert mode["identical_to_ours"] is None  # the weights are not the same
        assert mode["prefill_seconds"] == 2.0 and 0 < mode["time_to_first_token_ms"] < 10e3
    assert found["modes"]["ngram"]["acceptance_rate"] == round(2 / 3, 4)
    assert found["modes"]["ngram"]["tokens_per_round"] == round(8 / 6, 3)
    assert "llama.cpp 1 (fake)" in capsys.readouterr().out
    assert none_runs(downloads)


def test_the_server_runs_on_the_processor_with_our_threads_and_context(
    engine: ScriptedEngine, server: Path, downloads: Path
) -> None:
    bench(server, "--threads", "1")
    options = {tuple(start["options"]) for start in starts(downloads)}
    assert len(options) == 4  # each mode's server is started once
    for each in options:
        assert each[each.index("-t") + 1] == "1" and each[each.index("-c") + 1] == str(engine.context)
        assert each[each.index("--device") + 1] == "none" and each[each.index("--host") + 1] == "127.0.0.1"
    drafting = [each for each in options if "-md" in each]
    assert len(drafting) == 1 and drafting[0][drafting[0].index("--spec-type") + 1] == "draft-simple"


def test_a_long_prompt_is_read_once_by_each_server(
    engine: ScriptedEngine, server: Path, downloads: Path
) -> None:
    for name in ("big.gguf", "small.gguf"):
        write(downloads / name, caches=[False, True])
    for each, name in ((engine.pair.target, "big.gguf"), (engine.pair.draft, "small.gguf")):
        each.facts["source"]["sha256"] = sha256((downloads / name).read_bytes()).hexdigest()
    bench(server, "--long", "--repeat", "3")
    asked = [json.loads(line)["cached"] for line in (downloads / "asked").read_text().splitlines()]
    warm_up, once = [False] * 4, [False] * 4 + [True] * 8
    assert asked == [*warm_up, *once, *once]


def test_answers_that_differ_from_the_servers_plain_ones_are_counted(
    engine: ScriptedEngine, server: Path, tmp_path: Path
) -> None:
    file = write(tmp_path / "other.gguf", speculative_answer=TOKENS[::-1])
    modes = bench(server, "--against-gguf", str(file))["against"]["llama.cpp"]["modes"]
    assert {mode: each["identical_to_plain"] for mode, each in modes.items()} == {
        "plain": 2,
        "ngram": 0,
        "ngram-short": 0,
    }


def test_servers_are_ended_for_another_one_when_memory_is_short(
    engine: ScriptedEngine, server: Path, downloads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(llama_worker, "available_memory", lambda: 0)
    monkeypatch.setattr(
        llama_worker, "Server", lambda command: started.append(FakeProcess(command)) or started[-1]
    )
    servers = llama_worker.Servers(["server"], {"plain": [], "draft": ["-md"]}, 1)
    servers.running("plain")
    servers.running("draft")
    servers.running("plain")
    assert [each.closed for each in started] == [True, True, False]


class FakeProcess:
    def __init__(self, command: list[str]) -> None:
        self.closed = False

    def wait(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"die": "the model fell over"}, "the model fell over"),
        ({"probe": [7]}, "another vocabulary"),
        (None, "load_model: no GGUF file"),
    ],
)
def test_a_failure_of_the_server_is_one_clear_error(
    engine: ScriptedEngine,
    server: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: dict[str, Any] | None,
    words: str,
) -> None:
    file = write(tmp_path / "bad.gguf", **content) if content else tmp_path / "bad.gguf"
    if content is None:
        file.write_text("no JSON")
    options = ["--against", "llama.cpp", "--llama-server", str(server), "--against-gguf", str(file)]
    assert main(["bench", "pair", *options]) == 2
    said = capsys.readouterr().err
    assert "llama-server failed" in said and words in said and "Traceback" not in said
    assert content is None or none_runs(tmp_path)


def test_servers_end_with_the_process_that_asked_for_them(
    server: Path, tmp_path: Path, until: Callable[[Callable[[], bool]], bool]
) -> None:
    file = write(tmp_path / "slow.gguf", hang=True)
    worker = Child(PROGRAMS["llama.cpp"].worker)
    worker.tell(
        {"server": str(server), "target": str(file), "draft": None, "context": 64, "threads": 1, "probe": {}}
    )
    try:
        assert until(lambda: (tmp_path / "starts").exists() and bool(starts(tmp_path)))
    finally:
        worker.close(patience=10.0)  # closes its input, as when the command dies
    assert none_runs(tmp_path)


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], bool]:
    """Wait up to 20 seconds for something to be true."""

    def wait(true: Callable[[], bool]) -> bool:
        end = time.monotonic() + 20
        while not true() and time.monotonic() < end:
            time.sleep(0.05)
        return true()

    return wait


def test_a_missing_server_is_reported_before_anything_runs(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert main(["bench", "pair", "--against", "llama.cpp"]) == 2
    assert "--llama-server PATH" in capsys.readouterr().err and engine.calls == []


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "not exported from a GGUF"),
        ({"source": {"file": "gone.gguf"}}, "is not in"),
        ({"source": {"file": "big.gguf", "sha256": "0"}}, "another file"),
    ],
)
def test_a_gguf_that_is_not_the_pairs_is_refused(downloads: Path, facts: dict[str, Any], words: str) -> None:
    other: Any = SimpleNamespace(name="model", facts=facts)
    with pytest.raises(SpecdecError, match=words):
        source(other)


@pytest.mark.parametrize(
    "options",
    [
        ["--against-gguf", "x.gguf"],
        ["--llama-server", "x"],
        ["--against", "llama.cpp", "--against-pair", "pair"],
        ["--against", "llama.cpp", "--temperature", "1"],
        ["--against", "llama.cpp", "--device", "webgpu"],
    ],
)
def test_options_that_do_not_go_together_are_refused(engine: ScriptedEngine, options: list[str]) -> None:
    assert main(["bench", "pair", *options]) == 2
    assert engine.calls == []


def test_an_older_build_gets_the_options_that_it_knows() -> None:
    older = "--spec-type [none|ngram-cache|ngram-simple]  type\n--spec-ngram-size-n N"
    assert llama_worker.settings(older, "d.gguf") == {
        "plain": [],
        "ngram": ["--spec-type", "ngram-simple"],
        "ngram-short": [
            *("--spec-type", "ngram-simple"),
            *("--spec-ngram-size-n", "4", "--spec-ngram-size-m", "8"),
        ],
        "draft": ["-md", "d.gguf", "-ngld", "0"],
    }
    assert list(llama_worker.settings("-m FNAME", None)) == ["plain"]


@pytest.mark.large
def test_the_real_server_answers_the_file_that_the_pair_came_from(smol: Path, tmp_path: Path) -> None:
    program, out = shutil.which("llama-server"), tmp_path / "o.json"
    if program is None:
        pytest.skip("llama-server is not on the PATH")
    options = ["--against", "llama.cpp", "--limit", "1", "--max-new-tokens", "16", "--json", str(out)]
    assert main(["bench", str(smol), *options, "--modes", "plain", "--context", "1024"]) == 0
    found = json.loads(out.read_text())["against"]["llama.cpp"]
    assert found["modes"]["plain"]["new_tokens"] == 16 and found["speed_ratio"] > 0
    assert "ngram" in found["modes"]
