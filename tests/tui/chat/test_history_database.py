"""Opening the history: damaged, foreign and newer files are refused and left as they are."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from support.chat_app import no_work

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.chat.history import database as migrations
from specdec_onnx.tui.chat.history.database import STEPS, migrate, version
from specdec_onnx.tui.chat.history.store import Recorder, Store
from specdec_onnx.tui.chat.services import Services
from specdec_onnx.tui.chat.session import Piece
from specdec_onnx.tui.chat.settings import Preferences


def test_a_new_file_is_at_the_newest_version(tmp_path: Path) -> None:
    assert version(Store(tmp_path / "deep" / "h.sqlite3").connection) == len(STEPS)


def test_an_older_file_takes_only_the_missing_steps(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite3"
    old = Store(path)
    kept = old.create("Kept", "", {})
    migrate(old.connection, [*STEPS, "ALTER TABLE conversation ADD COLUMN pinned INTEGER DEFAULT 0;"])
    assert version(old.connection) == len(STEPS) + 1
    assert old.rows("SELECT title, pinned FROM conversation WHERE id = ?", kept.id) == [("Kept", 0)]


def test_a_failing_step_leaves_the_version_before_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "h.sqlite3")
    with pytest.raises(sqlite3.Error):
        migrate(store.connection, [*STEPS, "CREATE TABLE extra(a); NOT SQL;"])
    store.connection.execute("ROLLBACK")
    assert version(store.connection) == len(STEPS)
    assert store.rows("SELECT count(*) FROM sqlite_master WHERE name = 'extra'") == [(0,)]


def remove(path: Path) -> None:
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)


needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="a file in use can't be deleted there")


@needs_posix
def test_a_deleted_history_begins_anew_with_the_open_conversation(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite3"
    store, other = Store(path), Store(path)
    recorder = Recorder(store)
    services = Services(None, store, recorder, Preferences(), no_work)  # type: ignore[arg-type]
    left = store.create("deleted on purpose", "", {})
    store.add(left.id, None, "user", "x")
    kept = store.create("open", "pair", {"system": "s"})
    asked = store.add(kept.id, None, "user", "Question")
    said = store.add(kept.id, asked.id, "assistant")
    recorder.offer(said.id, "half", None, [Piece("half", "draft")], {})
    assert not services.keep(kept.id)
    remove(path)
    recorder.offer(said.id, "whole", "eos", [Piece("whole", "draft")], {})
    assert services.keep(kept.id) and not services.keep(kept.id)
    recorder.offer(said.id, "whole!", "eos", [Piece("whole!", "draft")], {})
    recorder.wait()
    assert store.add(kept.id, said.id, "user", "next").id > said.id
    fresh = Store(path)
    assert [each.title for each in fresh.recent()] == ["open"]
    assert [turn.text for turn in fresh.turns(kept.id)] == ["Question", "whole!", "next"]
    assert [each.id for each in fresh.search("whole")] == [kept.id]
    # A second window, which had it open too, adds what it shows to the same file.
    assert other.lost()
    other.recreate(left.id)
    assert {each.title for each in Store(path).recent()} == {"open", "deleted on purpose"}


@needs_posix
def test_a_history_that_cannot_begin_anew_goes_on_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite3"
    store = Store(path)
    kept = store.create("open", "", {})
    store.add(kept.id, None, "user", "Question")
    remove(path)
    path.mkdir()
    with pytest.raises(SpecdecError):
        store.recreate(kept.id)
    assert [turn.text for turn in store.turns(kept.id)] == ["Question"] and not store.lost()


def refused(path: Path) -> str:
    before = path.read_bytes()
    with pytest.raises(SpecdecError) as caught:
        Store(path)
    assert path.read_bytes() == before
    return str(caught.value)


def test_a_newer_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite3"
    Store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {len(STEPS) + 1}")
    connection.close()
    assert "newer specdec" in refused(path)


def test_text_in_place_of_a_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite3"
    path.write_text("these are my notes, not a database\n" * 50)
    assert "left untouched" in refused(path)


def test_a_torn_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite3"
    store = Store(path)
    for number in range(200):
        conversation = store.create(f"title {number}", "", {})
        store.add(conversation.id, None, "user", "words " * 50)
    store.close()
    content = bytearray(path.read_bytes())
    content[4096 * 3 : 4096 * 9] = os.urandom(4096 * 6)
    path.write_bytes(content)
    assert "left untouched" in refused(path)


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite3"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE bookmarks(url)")
    connection.close()
    assert "another program" in refused(path)


def test_the_newest_offered_state_is_on_disk_after_close(tmp_path: Path) -> None:
    store = Store(tmp_path / "h.sqlite3")
    said = store.add(store.create("t", "", {}).id, None, "assistant")
    recorder = Recorder(store)
    for length in range(1, 50):
        recorder.offer(said.id, "x" * length, None, [Piece("x", "suffix")] * length, {})
    recorder.offer(said.id, "x" * 50, "cancelled", [Piece("x", "suffix")] * 50, {"new_tokens": 50})
    recorder.close()
    assert recorder.failure() is None
    saved = Store(store.path).turn(said.id)
    assert saved is not None and saved.text == "x" * 50 and saved.reason == "cancelled"
    assert len(saved.pieces) == 50


def test_a_memory_store_records_too() -> None:
    store = Store(None)
    said = store.add(store.create("t", "", {}).id, None, "assistant")
    recorder = Recorder(store)
    recorder.offer(said.id, "words", "eos", [], {})
    recorder.wait()
    saved = store.turn(said.id)
    assert saved is not None and saved.text == "words"


WRITER = """
import sys, time
from pathlib import Path
from specdec_onnx.tui.chat.history.store import Recorder
from specdec_onnx.tui.chat.history.store import Store
store = Store(Path(sys.argv[1]))
said = store.add(store.create("killed", "", {}).id, None, "assistant")
recorder, text = Recorder(store), ""
while True:
    text += "word "
    recorder.offer(said.id, text, None, [], {})
    print(len(text), flush=True)
    time.sleep(0.02)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
def test_kill_9_loses_less_than_a_second(tmp_path: Path) -> None:
    path = tmp_path / "h.sqlite3"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    written = [int(process.stdout.readline()) for _ in range(60)]
    process.send_signal(signal.SIGKILL)
    written += [int(line) for line in process.stdout.read().split()]
    process.wait()
    store = Store(path)
    saved = store.rows("SELECT text, reason FROM turn")[0]
    assert saved[1] is None
    assert written[-1] - len(saved[0]) <= 5 * 50, "more than a second of words is gone"
    assert len(saved[0]) > 0


def test_the_schema_marks_the_file_as_ours(tmp_path: Path) -> None:
    connection = Store(tmp_path / "h.sqlite3").connection
    assert connection.execute("PRAGMA application_id").fetchone()[0] == migrations.APPLICATION_ID
