"""How the library gets to people: compiled by pip where it can be, left out with a reason where not, wheels for all."""

import os
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from specdec_onnx.runtime import kernels as front
from specdec_onnx.runtime.kernels import build_backend as backend
from specdec_onnx.runtime.kernels.build_backend import TARGETS, CannotCompile

ROOT = Path(__file__).parents[3]
needs_zig = pytest.mark.skipif(backend.find_spec("ziglang") is None, reason="ziglang is not installed")


def kernels_here() -> str:
    """The version of the library beside the sources; empty where there is none."""
    library = next(
        (file for file in backend.HERE.glob("specdec_kernels.*") if file.suffix != ".partial"), None
    )
    return "" if library is None else str(front._load(library).specdec_kernels_version().decode())


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the C files in which the backend works."""
    copy = tmp_path / "kernels"
    copy.mkdir()
    for file in (*backend.HERE.glob("*.c"), *backend.HERE.glob("*.h")):
        shutil.copy(file, copy)
    monkeypatch.setattr(backend, "HERE", copy)
    return copy


def fake_setuptools(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What setuptools' hooks are called with, in place of a build."""
    from setuptools import build_meta

    seen: dict[str, object] = {}
    monkeypatch.setattr(
        build_meta, "build_wheel", lambda folder, settings, metadata: seen.update(settings) or "w"
    )
    monkeypatch.setattr(build_meta, "build_editable", lambda *arguments: "e")
    return seen


@needs_zig
def test_a_wheel_with_the_library_is_for_this_platform_and_leaves_nothing_at_home(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = fake_setuptools(monkeypatch)
    for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    assert backend.build_wheel("out") == "w"
    assert (sources / backend.this_target().library).exists()
    assert seen["--build-option"][0] == "--plat-name"  # type: ignore[index]
    assert not list(home.iterdir())


@pytest.mark.parametrize("cause", ["no compiler", "another platform", "an error in the code"])
def test_where_it_cannot_be_compiled_the_installation_goes_on_without(
    sources: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    seen = fake_setuptools(monkeypatch)
    (sources / "specdec_kernels.so").write_text("an older one")
    if cause == "no compiler":
        monkeypatch.setattr(backend, "find_spec", lambda name: None)
    elif cause == "another platform":
        monkeypatch.setattr(sys, "platform", "plan9")
    else:
        monkeypatch.setattr(
            backend, "zig", lambda target: [sys.executable, "-c", "import sys; sys.exit('error: so')"]
        )
    assert backend.build_wheel("out") == "w"
    assert backend.build_editable("out") == "e"
    assert seen == {}
    reason = (sources / backend.ABSENT).read_text()
    assert {"no compiler": "ziglang", "another platform": "plan9"}.get(cause, "error: so") in reason
    assert not list(sources.glob("specdec_kernels*"))


@needs_zig
def test_a_later_success_takes_the_reason_away(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_setuptools(monkeypatch)
    (sources / backend.ABSENT).write_text("once")
    backend.build_editable("out")
    assert not (sources / backend.ABSENT).exists()


@pytest.mark.skipif(not kernels_here(), reason="the kernel library was not built")
def test_the_library_here_is_built_from_these_sources() -> None:
    remedy = "the library is stale: python runtime/kernels/build_backend.py"
    assert kernels_here() == backend.source_digest(), remedy


def test_another_source_is_another_version(sources: Path) -> None:
    before = backend.source_digest()
    (sources / "avx2.c").write_text("changed")
    assert backend.source_digest() != before


@needs_zig
@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.wheel)
def test_every_platform_compiles(tmp_path: Path, target: backend.Target) -> None:
    objects = backend.compile_files(target, tmp_path, backend.zig(target))
    names = {made.stem for made in objects}
    assert names == {*backend.SOURCES["any"], *backend.SOURCES[target.architecture]}
    assert {made.stem for made in backend.HERE.glob("*.c")} >= names


@needs_zig
def test_a_wheel_of_another_platform_has_its_library_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "TARGETS", {("win32", "aarch64"): TARGETS["win32", "aarch64"]})
    (name,) = backend.build_wheels(tmp_path)
    assert re.fullmatch(r"specdec_onnx-[\d.]+-py3-none-win_arm64\.whl", name)
    packed = zipfile.ZipFile(tmp_path / name).namelist()
    libraries = [file for file in packed if file.endswith((".so", ".dll", ".dylib"))]
    assert libraries == ["specdec_onnx/runtime/kernels/specdec_kernels.dll"]
    content = zipfile.ZipFile(tmp_path / name).read(libraries[0])
    assert content[:2] == b"MZ"
    assert all(word in content for word in (b"RegisterCustomOps", b"specdec_kernels_choose"))
    assert "specdec_onnx/__init__.py" in packed


def test_a_broken_file_is_a_reason_with_the_compilers_words(sources: Path) -> None:
    (sources / "matrix.c").write_text("this is no C")
    if backend.find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed")
    with pytest.raises(CannotCompile, match="error"):
        backend.compile_library(backend.this_target(), sources)


def test_no_binary_is_in_the_repository() -> None:
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    for target in TARGETS.values():
        assert f"/runtime/kernels/*{target.suffix}" in ignored


HEADER = os.environ.get("SPECDEC_ORT_HEADER", "")


@needs_zig
@pytest.mark.skipif(
    not HEADER, reason="SPECDEC_ORT_HEADER does not name an onnxruntime_c_api.h (1.24 or newer)"
)
def test_functions_are_in_their_places(tmp_path: Path) -> None:
    """Against the real header, which is not ours to copy; the other tests call each function at its place."""
    abi = (backend.HERE / "ort_abi.h").read_text()
    places = re.findall(r"FUNCTION\((\d+), (\w+),", abi)
    assert len(places) > 20
    check = '_Static_assert(offsetof({0}, {2}) == {1} * sizeof(void *), "{2}");'
    lines = [check.format("OrtApi", slot, name) for slot, name in places]
    fields = re.findall(
        r"\(\*(\w+)\)", abi.partition("struct OrtCustomOp {")[2].partition("} OrtCustomOp;")[0]
    )
    for at, old in enumerate(
        ("CreateKernelV2", "KernelComputeV2", "InferOutputShapeFn", "GetStartVersion", "GetEndVersion")
    ):
        lines.append(check.format("struct OrtCustomOp", 1 + len(fields) - 5 + at, old))
    source = tmp_path / "places.c"
    source.write_text(
        "\n".join(["#include <stddef.h>", "#include <stdint.h>", f'#include "{HEADER}"', *lines])
    )
    backend._call([*backend.zig(backend.this_target()), "-c", str(source), "-o", str(tmp_path / "places.o")])
