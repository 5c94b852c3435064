"""Our own CPU kernels for quantized products and attention: whether they are available, and which ones run."""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from specdec_onnx.models.errors import SpecdecError

SETTING = "SPECDEC_KERNELS"
"""The environment variable that selects them: `auto`, `off`, or the name of an instruction set."""

INSTRUCTION_SETS = ("scalar", "avx2", "avxvnni", "avx512vnni", "neon", "neon-i8mm")
_REGISTERING = Lock()
_FOLDER = Path(__file__).parent
_STEM, _SUFFIXES, _ABSENT = "specdec_kernels", (".so", ".dylib", ".dll"), "absent.txt"


@dataclass(frozen=True, slots=True)
class Kernels:
    """What multiplies with 4- and 8-bit weights: our library with the instruction set `name`.

    If `name` is empty, it is ONNX Runtime's own kernels, for the reason in `absent`. Attention is ours too, unless
    `attention` says why not.
    """

    name: str = ""
    library: Path | None = None
    absent: str = ""
    attention: str = ""
    fingerprint: str = ""
    """What costs and exactness depend on: the instruction set and the library's version."""

    def __str__(self) -> str:
        if self.name and self.attention:
            return f"{self.name}; attention is ONNX Runtime's: {self.attention}"
        return self.name or f"ONNX Runtime's: {self.absent}"

    @property
    def has_attention(self) -> bool:
        """Whether nodes for attention, if a model has any, are ours: each row is the same in any company then."""
        return bool(self.name) and not self.attention

    def register(self, options: Any) -> None:
        """Make sessions that are opened with `options` use these kernels."""
        if self.library is not None and self.name:
            with _REGISTERING:  # two models may be opened at once, with and without our attention
                _load(self.library).specdec_kernels_choose(self.name.encode(), self.has_attention)
                options.register_custom_ops_library(str(self.library))

    def open(self, opener: Callable[[Any], Any], options: Callable[[], Any]) -> tuple[Any, "Kernels"]:
        """A session by `opener`, and the kernels it uses.

        What these kernels reject of the model runs on ONNX Runtime's: attention or, if that does not help, all.
        """
        if not self.name:
            return opener(options()), self
        with_library = options()
        try:
            self.register(with_library)
            return opener(with_library), self
        except Exception as error:  # noqa: BLE001 - whatever it is, the model may open with less of the library
            why = _reason(error)
            less = replace(self, attention=why) if self.has_attention else replace(self, name="", absent=why)
            return less.open(opener, options)


def kernels() -> Kernels:
    """The kernels that the environment selects. Raises SpecdecError if they are unknown or not available here."""
    return _kernels(os.environ.get(SETTING, "").strip().lower() or "auto")


def demanded() -> str:
    """The setting of the environment for our kernels: `auto` if that turns them off."""
    setting = os.environ.get(SETTING, "").strip().lower()
    return setting if setting not in ("", "off") else "auto"


@contextmanager
def selected(setting: str) -> Iterator[Kernels]:
    """Within the block, models open with what `setting` stands for; then the environment selects again."""
    before = os.environ.get(SETTING)
    os.environ[SETTING] = setting
    try:
        yield kernels()
    finally:
        if before is None:
            del os.environ[SETTING]
        else:
            os.environ[SETTING] = before


@lru_cache
def _kernels(setting: str) -> Kernels:
    if setting == "off":
        return Kernels(absent=f"{SETTING} is off")
    if setting not in ("auto", *INSTRUCTION_SETS):
        choices = ", ".join(("auto", "off", *INSTRUCTION_SETS))
        raise SpecdecError(
            f"unknown kernels {setting!r}", f"{SETTING} is set to it", f"choose one of {choices}"
        )
    library, absent = _find()
    if library is None:
        if setting == "auto":
            return Kernels(absent=absent)
        raise SpecdecError(f"kernels {setting!r} are not available", absent, f"unset {SETTING}")
    return _chosen(setting, library)


def _chosen(setting: str, library: Path) -> Kernels:
    loaded = _load(library)
    name = loaded.specdec_kernels_best().decode() if setting == "auto" else setting
    if not name:
        return Kernels(absent="this processor has none of the instruction sets that they know")
    if not loaded.specdec_kernels_usable(name.encode()):
        why = "this processor, or this build of the library, does not have that instruction set"
        raise SpecdecError(
            f"kernels {name!r} are not available", why, f"use {', '.join(usable_sets())} or auto"
        )
    version = loaded.specdec_kernels_version().decode()
    return Kernels(name, library, fingerprint=f"{name} {version}")


def usable_sets() -> list[str]:
    """The instruction sets that can be selected here, best first; none without the library."""
    library, _ = _find()
    if library is None:
        return []
    loaded = _load(library)
    names: list[str] = []
    while found := loaded.specdec_kernels_name(len(names)):
        names.append(found.decode())
    return [name for name in names if loaded.specdec_kernels_usable(name.encode())]


@lru_cache
def _find() -> tuple[Path | None, str]:
    """The library, or why there is none."""
    for file in (_FOLDER / (_STEM + suffix) for suffix in _SUFFIXES):
        if file.exists():
            try:
                _load(file)
            except OSError as error:
                return None, f"the library cannot be loaded: {error}"
            return file, ""
    note = _FOLDER / _ABSENT
    why = note.read_text(encoding="utf-8").strip() if note.exists() else "pip has not compiled it"
    return None, f"the library was not built: {why}"


@lru_cache
def _load(library: Path) -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library))
    for name in ("version", "best", "name"):
        getattr(loaded, f"specdec_kernels_{name}").restype = ctypes.c_char_p
    loaded.specdec_kernels_name.argtypes = [ctypes.c_size_t]
    return loaded


def _reason(error: Exception) -> str:
    """The library's own message, without what ONNX Runtime puts around it."""
    text = str(error).strip().splitlines()[0]
    return text.rpartition("specdec kernels: ")[2]
