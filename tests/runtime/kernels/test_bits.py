"""The C library by itself: the same bits on both architectures, and nothing that a sanitizer minds."""

import platform
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

from specdec_onnx.runtime.kernels import build_backend as backend
from specdec_onnx.runtime.kernels.build_backend import TARGETS, CannotCompile, Target

PROGRAM = Path(__file__).parents[2] / "support" / "bits.c"
ARM = Target("aarch64-linux-musl", "", "")
QEMU = shutil.which("qemu-aarch64-static")


def build(target: Target, compiler: Sequence[str], folder: Path, *flags: str) -> Path:
    """The program, linked with the library's files."""
    objects = backend.compile_files(target, folder, compiler, flags)
    program = folder / "bits"
    own = ["-std=c11", "-O2", "-ffp-contract=off", f"-I{backend.HERE}", str(PROGRAM)]
    backend._call([*compiler, *flags, *own, *map(str, objects), "-lm", "-o", str(program)])
    return program


def run(*command: str) -> dict[str, dict[str, str]]:
    """Checksums by case and instruction set."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for line in done.stdout.splitlines():
        case, name, sum_ = line.split("|")
        found[case][name] = sum_
    return found


def zig(target: Target) -> list[str]:
    try:
        return backend.zig(target)
    except CannotCompile as why:
        pytest.skip(str(why))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """This processor's checksums, from a build that stops at undefined behaviour."""
    try:
        target = backend.this_target()
    except CannotCompile as why:
        pytest.skip(str(why))
    folder = tmp_path_factory.mktemp("here")
    flags = ["-fsanitize=undefined", "-fno-sanitize-recover=all"]
    return run(str(build(target, zig(target), folder, *flags)))


def test_every_instruction_set_of_this_processor_gives_the_same_bits(here: dict[str, dict[str, str]]) -> None:
    assert len(here) > 1000
    assert {len(set(sums.values())) for sums in here.values()} == {1}
    if platform.machine() in ("x86_64", "AMD64"):
        assert all("scalar" in sums for sums in here.values())


@pytest.mark.skipif(QEMU is None, reason="qemu-aarch64-static is not installed")
def test_neon_gives_the_same_bits(here: dict[str, dict[str, str]], tmp_path: Path) -> None:
    there = run(str(QEMU), "-cpu", "max", str(build(ARM, zig(ARM), tmp_path)))
    assert {tuple(sums) for sums in there.values()} == {("neon-i8mm", "neon", "scalar")}
    assert {case: set(sums.values()) for case, sums in there.items()} == {
        case: set(sums.values()) for case, sums in here.items()
    }


@pytest.mark.skipif(
    shutil.which("gcc") is None, reason="gcc, which brings the address sanitizer, is not installed"
)
@pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.system() != "Linux", reason="written for x86-64"
)
def test_no_byte_outside_of_a_buffer_is_touched(here: dict[str, dict[str, str]], tmp_path: Path) -> None:
    flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"]
    found = run(str(build(TARGETS["linux", "x86_64"], ["gcc"], tmp_path, *flags)))
    assert {case: set(sums.values()) for case, sums in found.items()} == {
        case: set(sums.values()) for case, sums in here.items()
    }
