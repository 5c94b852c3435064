"""A folder appears whole or not at all."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specdec_onnx.export.staging import staged
from specdec_onnx.models.errors import SpecdecError

STALL = """
import sys, time
from pathlib import Path
from specdec_onnx.export.staging import staged
with staged(Path(sys.argv[1]), force=True) as folder:
    (folder / "specdec.json").write_text("new")
    print("ready", flush=True)
    time.sleep(60)
"""


def export(out: Path, content: str, *, force: bool = False) -> None:
    with staged(out, force=force) as folder:
        (folder / "specdec.json").write_text(content)
        (folder / "deep").mkdir()
        (folder / "deep" / "data").write_bytes(b"x" * 100)


def test_appears_at_the_end(tmp_path: Path) -> None:
    out = tmp_path / "new" / "pair"
    with staged(out) as folder:
        (folder / "specdec.json").write_text("content")
        assert not out.exists()
    assert [path.name for path in out.iterdir()] == ["specdec.json"]
    assert [path.name for path in out.parent.iterdir()] == ["pair"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_leaves_nothing(error: type[BaseException], tmp_path: Path) -> None:
    with pytest.raises(error), staged(tmp_path / "pair") as folder:
        (folder / "specdec.json").write_text("half")
        raise error
    assert list(tmp_path.iterdir()) == []


def test_a_former_export_gives_way_only_by_force(tmp_path: Path) -> None:
    out = tmp_path / "pair"
    export(out, "first")
    with pytest.raises(SpecdecError, match="exists already"):
        export(out, "second")
    assert (out / "specdec.json").read_text() == "first"
    export(out, "second", force=True)
    assert (out / "specdec.json").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["pair"]


def test_an_error_keeps_the_former_export(tmp_path: Path) -> None:
    out = tmp_path / "pair"
    export(out, "first")
    with pytest.raises(RuntimeError), staged(out, force=True) as folder:
        (folder / "specdec.json").write_text("half")
        raise RuntimeError
    assert (out / "specdec.json").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["pair"]


@pytest.mark.parametrize("force", [False, True])
def test_never_replaces_what_no_export_wrote(force: bool, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SpecdecError, match="not empty"):
        export(tmp_path / "home", "new", force=force)
    with pytest.raises(SpecdecError, match="in the way"):
        export(tmp_path / "file", "new", force=force)
    assert (tmp_path / "home" / "letter.txt").read_text() == "dear"


def test_an_empty_folder_is_free(tmp_path: Path) -> None:
    (tmp_path / "pair").mkdir()
    export(tmp_path / "pair", "new")
    assert (tmp_path / "pair" / "specdec.json").read_text() == "new"


def test_no_place_to_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecdecError, match="cannot write"):
        export(tmp_path / "file" / "pair", "new")


def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SpecdecError, match="could not write") as caught, staged(tmp_path / "pair"):
        raise OSError(28, "No space left on device")
    assert "No space left" in caught.value.why
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_killed_export_leaves_the_former_one(number: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "pair"
    export(out, "first")
    with subprocess.Popen(
        [sys.executable, "-c", STALL, str(out)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        run.send_signal(number)
    assert (out / "specdec.json").read_text() == "first"
    visible = [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")]
    assert visible == ["pair"]


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An export to `pair` that another process is at."""
    command = [sys.executable, "-c", STALL, str(tmp_path / "pair")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
        assert run.stdout is not None and run.stdout.readline() == b"ready\n"
        yield run
        run.kill()


@pytest.mark.parametrize("name", ["pair", "another"])
def test_what_a_killed_export_left_goes_with_the_next_export_to_that_place(
    stalled: subprocess.Popen[bytes], name: str, tmp_path: Path
) -> None:
    assert len(list(tmp_path.glob(".pair.partial-*"))) == 1
    stalled.kill()
    stalled.wait()
    export(tmp_path / name, "new")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_running_export_is_never_swept(stalled: subprocess.Popen[bytes], tmp_path: Path) -> None:
    (partial,) = tmp_path.glob(".pair.partial-*")
    yesterday = time.time() - 86400
    for path in (*partial.iterdir(), partial):
        os.utime(path, (yesterday, yesterday))  # it may have been silent for long: a big model on a slow disk
    for name in ("pair", "another"):
        export(tmp_path / name, "new")
    assert stalled.poll() is None and (partial / "specdec.json").read_text() == "new"


def test_a_former_export_comes_back_when_its_replacement_was_killed_in_the_last_moment(
    tmp_path: Path,
) -> None:
    for name in (".pair.partial-0123abcd", ".pair.former-0123abcd"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "specdec.json").write_text(name)
    (tmp_path / ".pair.lock-0123abcd").touch()
    with pytest.raises(SpecdecError, match="exists already"):
        export(tmp_path / "pair", "new")
    assert (tmp_path / "pair" / "specdec.json").read_text() == ".pair.former-0123abcd"
    assert [path.name for path in tmp_path.iterdir()] == ["pair"]


def test_files_of_others_that_look_alike_stay(tmp_path: Path) -> None:
    for name in (".yarn.lock-12", ".x.lock-zzzzzzzz", ".lock-0123abcd"):
        (tmp_path / name).write_text("mine")
    export(tmp_path / "pair", "new")
    assert len(list(tmp_path.iterdir())) == 4


def test_the_next_export_clears_what_a_killed_one_left(tmp_path: Path) -> None:
    old, young = tmp_path / ".pair.partial-old", tmp_path / ".pair.partial-young"
    for folder in (old, young):
        folder.mkdir()
        (folder / "data").write_bytes(b"")
    yesterday = time.time() - 86400
    for path in (old / "data", old):
        os.utime(path, (yesterday, yesterday))
    export(tmp_path / "pair", "new")
    assert not old.exists()
    assert young.exists()


@pytest.mark.parametrize("force", [False, True])
def test_the_working_folder_is_refused_before_any_work(
    force: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pair" / "deep").mkdir(parents=True)
    if force:
        (tmp_path / "pair" / "specdec.json").write_text("former")
    else:
        (tmp_path / "pair" / "deep").rmdir()
    monkeypatch.chdir(tmp_path / "pair" / ("deep" if force else ""))
    for out in (Path("." if not force else ".."), tmp_path / "pair"):
        with pytest.raises(SpecdecError, match="working folder"), staged(out, force=force):
            pytest.fail("began")
    assert Path.cwd().exists()


def test_a_mounted_disk_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pair").mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path.name == "pair")
    with pytest.raises(SpecdecError, match="mounted there"), staged(tmp_path / "pair"):
        pytest.fail("began")


@pytest.mark.skipif(sys.platform == "win32", reason="a folder in use cannot be deleted")
def test_a_deleted_working_folder_is_one_clear_error(tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom specdec_onnx.export.staging import staged\n"
        "from specdec_onnx.models.command import ExitCode\n"
        "gone, there = map(Path, sys.argv[1:])\ngone.mkdir(); os.chdir(gone); gone.rmdir(); there.mkdir()\n"
        "with staged(there): pass\n"
        "with ExitCode() as result:\n    with staged(Path('pair')): pass\nsys.exit(result.code)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "gone"), str(tmp_path / "there")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "the working folder was deleted" in done.stderr


def test_of_two_exports_to_one_place_the_later_replaces_the_earlier_only_by_force(tmp_path: Path) -> None:
    out = tmp_path / "pair"
    with pytest.raises(SpecdecError, match="exists already"), staged(out) as folder:
        (folder / "specdec.json").write_text("later")
        export(out, "earlier")
    assert (out / "specdec.json").read_text() == "earlier"
    with staged(out, force=True) as folder:
        (folder / "specdec.json").write_text("later")
        export(out, "earlier", force=True)
    assert (out / "specdec.json").read_text() == "later"
    assert [path.name for path in tmp_path.iterdir()] == ["pair"]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_the_reason_why_nothing_can_be_written_is_the_systems() -> None:
    with pytest.raises(SpecdecError, match="cannot write to /proc") as caught, staged(Path("/proc/pair")):
        pytest.fail("began")
    assert "lock" not in caught.value.why.partition(":")[0]


@pytest.mark.skipif(sys.platform != "linux", reason="names of bytes")
def test_a_name_that_is_not_utf_8_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = tmp_path / os.fsdecode(b"p\xe9")
    odd.mkdir()
    monkeypatch.chdir(odd)
    for out in (odd, Path("inside")):
        with pytest.raises(SpecdecError, match="cannot be opened") as caught, staged(out):
            pytest.fail("began")
        assert "not UTF-8" in caught.value.why
