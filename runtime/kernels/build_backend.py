"""Compiles the kernel library: while pip builds the package, and for the wheels of every platform.

pip calls the hooks of PEP 517 (see pyproject.toml), which are setuptools' own with the library compiled first. Zig's C
compiler comes as a Python package and compiles for every platform from each of them:
`python runtime/kernels/build_backend.py dist` writes all wheels into the folder `dist`; without a folder, it compiles
the library of this checkout again.
Where the library cannot be compiled, the package is installed without it, and `specdec doctor` tells why.
"""

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
STEM = "specdec_kernels"
ABSENT = "absent.txt"
"""Beside the sources in place of the library: why it is not there."""

_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = ("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mavx512vnni")
SOURCES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "any": dict.fromkeys(
        ("library", "matmulnbits", "attention", "matrix", "memory", "processor", "scalar"), ()
    ),
    "x86_64": {"avx2": _AVX2, "avxvnni": (*_AVX2, "-mavxvnni"), "avx512vnni": (*_AVX2, *_AVX512)},
    "aarch64": {
        "neon_dotprod": ("-mcpu=generic+dotprod",),
        "neon_i8mm": ("-mcpu=generic+dotprod+i8mm",),
    },
}
"""C files by architecture, with the flags that only they get: the rest must run on any processor."""

FLAGS = (
    "-std=c11",
    "-O3",
    "-Wall",
    "-Wextra",
    "-Wno-missing-field-initializers",
    "-fPIC",
    "-ffp-contract=off",
)
_LIBRARY = ("-fvisibility=hidden", "-g0", "-s", "-shared")


class CannotCompile(Exception):
    """Why there is no library."""


@dataclass(frozen=True, slots=True)
class Target:
    """A platform: how Zig, wheels and the loader of shared libraries call it."""

    zig: str
    wheel: str
    suffix: str

    @property
    def architecture(self) -> str:
        """`x86_64` or `aarch64`."""
        return self.zig.partition("-")[0]

    @property
    def library(self) -> str:
        """The library's file name."""
        return STEM + self.suffix


TARGETS = {
    ("linux", "x86_64"): Target("x86_64-linux-gnu.2.17", "manylinux_2_17_x86_64", ".so"),
    ("linux", "aarch64"): Target("aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64", ".so"),
    ("darwin", "x86_64"): Target("x86_64-macos.11.0", "macosx_11_0_x86_64", ".dylib"),
    ("darwin", "aarch64"): Target("aarch64-macos.11.0", "macosx_11_0_arm64", ".dylib"),
    ("win32", "x86_64"): Target("x86_64-windows-gnu", "win_amd64", ".dll"),
    ("win32", "aarch64"): Target("aarch64-windows-gnu", "win_arm64", ".dll"),
}
_ARCHITECTURES = {"x86_64": "x86_64", "amd64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


def this_target() -> Target:
    """The platform this Python was built for; CannotCompile where the kernels don't know it."""
    machine = sysconfig.get_platform().rpartition("-")[2] if sys.platform == "win32" else platform.machine()
    known = TARGETS.get((sys.platform, _ARCHITECTURES.get(machine.lower(), "")))
    if known is None or sys.maxsize < 2**32:
        raise CannotCompile(f"the kernels know no {sys.platform} on {machine}")
    return known


def compile_files(
    target: Target, folder: Path, compiler: Sequence[str], flags: Sequence[str] = ()
) -> list[Path]:
    """Compile every C file for `target` into `folder`; the objects. Raises CannotCompile."""
    files = {**SOURCES["any"], **SOURCES[target.architecture]}

    def compile_one(name: str) -> Path:
        made = folder / f"{name}.o"
        _call([*compiler, *FLAGS, *files[name], *flags, "-c", str(HERE / f"{name}.c"), "-o", str(made)])
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_one, files))


def source_digest() -> str:
    """Stands for all that the library is made of; the library knows it as its version."""
    files = sorted([*HERE.glob("*.c"), *HERE.glob("*.h"), HERE / Path(__file__).name])
    parts = (file.read_bytes() for file in files if file.exists())
    return hashlib.sha256(b"".join(parts)).hexdigest()[:12]


def zig(target: Target) -> list[str]:
    """Zig's C compiler for `target`. Raises CannotCompile where the package ziglang is missing."""
    if find_spec("ziglang") is None:
        raise CannotCompile("the package ziglang, which provides the compiler, is not installed")
    return [sys.executable, "-m", "ziglang", "cc", "-target", target.zig]


def compile_library(target: Target, folder: Path) -> Path:
    """Compile the library for `target` into `folder`, in place of any other. Raises CannotCompile."""
    compiler = zig(target)
    with tempfile.TemporaryDirectory() as temporary:
        flags = (*_LIBRARY[:1], f"-DSPECDEC_KERNELS_VERSION={source_digest()}")
        objects = compile_files(target, Path(temporary), compiler, flags)
        made = Path(temporary) / target.library
        own_name = ["-install_name", f"@rpath/{target.library}"] if target.suffix == ".dylib" else []
        _call([*compiler, *_LIBRARY, *own_name, *map(str, objects), "-o", str(made)])
        _clean(folder)
        partial = folder / f"{target.library}.partial"
        shutil.copyfile(made, partial)
        return partial.replace(folder / target.library)


@contextmanager
def _zig_caches_in(folder: str) -> Iterator[None]:
    """An installation leaves nothing in the home folder, and needs none; who has set the places is obeyed."""
    names = [name for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR") if name not in os.environ]
    os.environ.update(dict.fromkeys(names, folder))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


def _clean(folder: Path) -> None:
    for name in (ABSENT, *(STEM + suffix for suffix in (".so", ".dylib", ".dll"))):
        (folder / name).unlink(missing_ok=True)


def _call(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotCompile(f"the compiler cannot be started: {error}") from error
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise CannotCompile(next((line for line in lines if "error" in line), lines[-1]))


def _prepare() -> Target | None:
    """Compile for this platform beside the sources, or note there why not."""
    try:
        target = this_target()
        with tempfile.TemporaryDirectory() as cache, _zig_caches_in(cache):
            compile_library(target, HERE)
    except CannotCompile as why:
        _clean(HERE)
        (HERE / ABSENT).write_text(f"{why}\n", encoding="utf-8")
        print(f"specdec-onnx is built without its own kernels: {why}", file=sys.stderr)
        return None
    return target


def build_wheel(
    folder: str, settings: dict[str, Any] | None = None, metadata_folder: str | None = None
) -> str:
    """PEP 517: a wheel for this platform, or one for any where the library could not be compiled."""
    from setuptools import build_meta

    tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    options = {"--build-option": ["--plat-name", tag]} if _prepare() else {}
    return build_meta.build_wheel(folder, (settings or {}) | options, metadata_folder)


def build_editable(
    folder: str, settings: dict[str, Any] | None = None, metadata_folder: str | None = None
) -> str:
    """PEP 660: the library is compiled beside its sources."""
    from setuptools import build_meta

    _prepare()
    return build_meta.build_editable(folder, settings, metadata_folder)


def __getattr__(name: str) -> Any:
    """The other hooks are setuptools' own."""
    from setuptools import build_meta

    return getattr(build_meta, name)


def build_wheels(folder: Path) -> list[str]:
    """A wheel for each platform, written into `folder`; their names."""
    root = HERE.parent.parent
    names = []
    folder.mkdir(parents=True, exist_ok=True)
    for target in TARGETS.values():
        with tempfile.TemporaryDirectory() as temporary:
            copy = Path(temporary) / root.name
            unwanted = shutil.ignore_patterns(
                ".*", "build", "dist", "tests", "*.egg-info", "pairs", "__pycache__"
            )
            shutil.copytree(root, copy, ignore=unwanted)
            compile_library(target, copy / "runtime" / "kernels")
            code = (
                "import sys; from setuptools import build_meta\n"
                "made = build_meta.build_wheel(sys.argv[1], {'--build-option': ['--plat-name', sys.argv[2]]})"
            )
            command = [sys.executable, "-c", code, str(folder.resolve()), target.wheel]
            subprocess.run(command, cwd=copy, check=True, stdout=subprocess.DEVNULL)
            names.append(next(file.name for file in folder.glob(f"*-{target.wheel}.whl")))
            print(names[-1], flush=True)
    return names


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build a wheel for each platform, or compile for this one.")
    parser.add_argument(
        "folder", type=Path, nargs="?", help="where the wheels go; none: compile beside the sources"
    )
    wanted = parser.parse_args().folder
    try:
        if wanted is None:
            print(compile_library(this_target(), HERE))
        else:
            build_wheels(wanted)
    except CannotCompile as why:
        sys.exit(f"{why}\n  try: pip install ziglang")
