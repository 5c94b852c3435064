"""Models from a hub: fetched once, found again without a connection, refused in plain words."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save
from support.sources import COMMIT, Hub, point_to
from support.tiny import tiny_checkpoint

from specdec_onnx.export.checkpoint import hub as export_hub
from specdec_onnx.export.checkpoint.hub import HubId, fetch_repository
from specdec_onnx.export.cli import main
from specdec_onnx.export.sources import resolve
from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import open_model
from specdec_onnx.models.progress import silent

REPO = "someone/tiny-llama"


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our cache and the hub's lie in the test's folder."""
    from huggingface_hub import constants

    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A tiny model as people publish it, in two shards."""
    folder, tiny = tmp_path_factory.mktemp("tiny"), tiny_checkpoint("llama")
    tiny.write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(tiny.config))
    names = sorted(tiny.names())
    shards = {"model-00001-of-00002.safetensors": names[:5], "model-00002-of-00002.safetensors": names[5:]}
    for shard, tensors in shards.items():
        (folder / shard).write_bytes(save({name: tiny.tensor(name) for name in tensors}))
    where = {name: shard for shard, tensors in shards.items() for name in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def publish(hub: Hub, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        hub.add(REPO, name, content)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Qwen/Qwen3-0.6B", HubId("Qwen/Qwen3-0.6B")),
        ("a/b@v1.0", HubId("a/b", revision="v1.0")),
        ("a/b@refs/pr/1", HubId("a/b", revision="refs/pr/1")),
        ("a/b-GGUF/b-Q4_K_M.gguf", HubId("a/b-GGUF", "b-Q4_K_M.gguf")),
        ("a/b/deep/c.gguf@main", HubId("a/b", "deep/c.gguf")),
        ("model", None),
        ("../b", None),
        ("a/..", None),
        ("/a/b", None),
        ("a/b/c", None),
        ("a/b c", None),
    ],
)
def test_ids(text: str, expected: HubId | None) -> None:
    assert HubId.parse(text) == expected


def test_a_model_is_exported_by_its_id(hub: Hub, files: dict[str, bytes], tmp_path: Path) -> None:
    publish(
        hub, files | {"pytorch_model.bin": b"pickle", "consolidated.safetensors": b"twice", "README.md": b""}
    )
    command = [REPO, "--draft", f"{REPO}@main", "-o", str(tmp_path / "out"), "--no-measure"]
    assert main([*command, "--target-format", "fp32", "--trim", "none"]) == 0
    model = open_model(tmp_path / "out" / "target")
    assert model.facts["name"] == "tiny-llama"
    fetched = {path.name for path in (tmp_path / "cache" / "hub").rglob("*") if path.is_file()}
    assert not fetched & {"pytorch_model.bin", "consolidated.safetensors", "README.md"}


def test_fetched_once_and_there_without_a_connection(
    hub: Hub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(hub, files)
    folder, _ = resolve(REPO, "none", silent)
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".complete"} == files
    count = len(hub.gets)
    assert resolve(REPO, "none", silent)[0] == folder
    assert len(hub.gets) == count
    point_to(monkeypatch, "http://127.0.0.1:9")
    assert resolve(REPO, "none", silent)[0] == folder
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert resolve(REPO, "none", silent)[0] == folder


def test_a_broken_download_goes_on_where_it_stopped(hub: Hub, files: dict[str, bytes]) -> None:
    publish(hub, files)
    hub.drops_after = 20_000
    folder = fetch_repository(HubId(REPO), silent)
    assert all((folder / name).read_bytes() == content for name, content in files.items())
    assert any(wanted and wanted != "bytes=0-" for wanted in hub.gets)


def test_the_users_own_hub_cache_is_used_offline(
    files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_to(monkeypatch, "http://127.0.0.1:9")
    kept = tmp_path / "hf" / "models--someone--tiny-llama"
    snapshot = kept / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text(COMMIT)
    for name, content in files.items():
        (snapshot / name).write_bytes(content)
    assert fetch_repository(HubId(REPO), silent) == snapshot
    assert (
        main(
            [REPO, "--draft", "none", "-o", str(tmp_path / "out"), "--no-measure", "--target-format", "fp32"]
        )
        == 0
    )
    assert open_model(tmp_path / "out").facts["name"] == "tiny-llama"


def test_one_gguf_by_name(hub: Hub) -> None:
    hub.add(REPO, "tiny-Q4_0.gguf", b"GGUF4")
    hub.add(REPO, "tiny-Q8_0.gguf", b"GGUF8")
    with pytest.raises(SpecdecError, match="is ambiguous") as caught:
        fetch_repository(HubId(REPO), silent)
    assert f"{REPO}/tiny-Q4_0.gguf" in str(caught.value)
    assert resolve(f"{REPO}/tiny-Q8_0.gguf", "none", silent)[0].read_bytes() == b"GGUF8"
    with pytest.raises(SpecdecError, match="tiny-Q8_0"):
        fetch_repository(HubId(REPO, "other.gguf"), silent)


def test_a_damaged_file_is_not_kept(
    hub: Hub, files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(hub, files)
    monkeypatch.setattr(export_hub, "sha256_of", lambda path: "0")
    with pytest.raises(SpecdecError, match="damaged"):
        fetch_repository(HubId(REPO), silent)
    assert not list((tmp_path / "cache").rglob("config.json"))


def test_refusals(hub: Hub, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    publish(hub, files)
    hub.add("someone/pickled", "pytorch_model.bin", b"pickle")
    with pytest.raises(SpecdecError, match="no someone/other"):
        resolve("someone/other", "none", silent)
    with pytest.raises(SpecdecError, match="no such revision"):
        resolve(f"{REPO}@v9", "none", silent)
    with pytest.raises(SpecdecError, match="no supported weights"):
        resolve("someone/pickled", "none", silent)
    hub.gated.add(REPO)
    with pytest.raises(SpecdecError, match="gated"):
        resolve(REPO, "none", silent)
    point_to(monkeypatch, "http://127.0.0.1:9")
    with pytest.raises(SpecdecError, match="cannot reach the hub"):
        resolve("someone/other", "none", silent)


def test_weights_survive_the_trip(hub: Hub, files: dict[str, bytes]) -> None:
    from specdec_onnx.export.checkpoint import open_checkpoint

    publish(hub, files)
    fetched, tiny = open_checkpoint(fetch_repository(HubId(REPO), silent)), tiny_checkpoint("llama")
    for name in tiny.names():
        np.testing.assert_array_equal(fetched.tensor(name), tiny.tensor(name))
