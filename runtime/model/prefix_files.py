"""Texts whose keys and values are kept on disk, so that a later process does not read a long text again.

A file is safetensors: the token ids and the rows of every cache, [1, heads, rows, width]. It counts only for the
`identity` that it was written for: the model, its device, kernels and type of cache, whose bits it holds. A file that is
foreign, cut off or damaged is ignored. Putting rows back takes about a hundredth of the time that computing them does.
"""

import json
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from shutil import disk_usage
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.models.system import replacing
from specdec_onnx.runtime.model.cache import Cache
from specdec_onnx.runtime.model.prefixes import common_prefix

WORTHWHILE = 256
"""Tokens from which on a file pays: about half a second of reading for a model of 1.5 billion weights."""

_NEW = 10
"""The part of a text, one in so many, that must be new for it to be written again: disks wear out."""

BUDGET = 2 << 30
"""Bytes that all files together may take; the least recently used goes first."""

_SHARE = 4
"""A file takes at most one part in so many of the room that is left on the disk."""

_TOKENS, _METADATA, _SUFFIX = "tokens", "__metadata__", ".safetensors"
_ABANDONED = 60.0
"""Seconds without a change after which a file that is being written counts as left over."""

_LARGEST_HEADER = 1 << 20
_UNUSABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    RecursionError,
)
_KINDS = {"F32": np.float32, "F16": np.float16, "I32": np.int32}
_NAMES = {np.dtype(kind): name for name, kind in _KINDS.items()}


@dataclass(frozen=True, slots=True)
class _Stored:
    """A file's text, and where its rows are."""

    file: Path
    tokens: list[int]
    start: int
    header: dict[str, Any]

    def rows(self) -> dict[str, NDArray[Any]]:
        """All rows by cache name. Raises ValueError if the file is not what was written."""
        content = np.fromfile(self.file, np.uint8, offset=self.start)
        if zlib.crc32(content.data, _start_of_checksum(self.header)) != int(self.header[_METADATA]["crc32"]):
            raise ValueError("the file is damaged")
        return {name: _array(content, entry) for name, entry in self.header.items() if name[0].isdigit()}


class PrefixFiles:
    """The stored texts of one model, in `folder`, which those of other models share."""

    def __init__(self, folder: Path, identity: str, budget: int = BUDGET) -> None:
        self.folder, self.identity, self._budget = folder, identity, budget

    def texts(self) -> list[list[int]]:
        """The token ids of all texts."""
        return [each.tokens for each in self._all()]

    def save(self, tokens: Sequence[int], cache: Cache, until: Callable[[], bool] = lambda: False) -> None:
        """Store the text that `cache` holds, in place of beginnings of it, unless little of it is new.

        What cannot be written is not kept, nor what is only half-written when `until()` holds: the text is then read
        again.
        """
        known = list(self._all())
        stored = max((common_prefix(each.tokens, tokens) for each in known), default=0)
        if len(tokens) - stored < max(WORTHWHILE, len(tokens) // _NEW):
            return
        with suppress(OSError, MemoryError):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._delete_leftovers()
            if _SHARE * len(tokens) * cache.row_bytes > disk_usage(self.folder).free:
                return
            self._write(tokens, cache, until)
            for each in known:
                if common_prefix(each.tokens, tokens) == len(each.tokens):
                    each.file.unlink(missing_ok=True)
            self._keep_to_budget()

    def restore(self, tokens: Sequence[int], known: int, cache: Cache) -> int:
        """Append to `cache`, which holds the first `known` of `tokens`, those after them that are stored.

        Returns how many of the tokens it holds then.
        """
        if len(tokens) < known + WORTHWHILE:
            return known
        best = max(self._all(), key=lambda each: common_prefix(each.tokens, tokens), default=None)
        if best is None or (shared := common_prefix(best.tokens, tokens)) < known + WORTHWHILE:
            return known
        try:
            rows = best.rows()
            expected = {name: _form(cache.rows(name, 0, 0)) for name in cache.names}
            fits = all(each.shape[2] == len(best.tokens) for each in rows.values())
            if fits and expected == {name: _form(each) for name, each in rows.items()}:
                cache.extend(shared - known, lambda name: rows[name][:, :, known:shared])
                os.utime(best.file)
                return shared
        except MemoryError:
            pass  # the file may be all right
        except _UNUSABLE:
            with suppress(OSError):
                best.file.unlink()
        return known

    def _all(self) -> Iterator[_Stored]:
        for file in sorted(self.folder.glob(f"{self._key}-*{_SUFFIX}")):
            with suppress(*_UNUSABLE):
                yield self._read(file)

    @property
    def _key(self) -> str:
        return sha256(self.identity.encode()).hexdigest()[:16]

    def _read(self, file: Path) -> _Stored:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if size > _LARGEST_HEADER:
                raise ValueError("it has no header")
            header = json.loads(stream.read(size))
            start, (first, end) = 8 + size, header[_TOKENS]["data_offsets"]
            whole = max(entry["data_offsets"][1] for name, entry in header.items() if name != _METADATA)
            if header[_METADATA]["identity"] != self.identity or start + whole != file.stat().st_size:
                raise ValueError("it was written for something else, or is not whole")
            stream.seek(start + first)
            return _Stored(file, np.frombuffer(stream.read(end - first), np.int32).tolist(), start, header)

    def _write(self, tokens: Sequence[int], cache: Cache, until: Callable[[], bool]) -> None:
        arrays: dict[str, NDArray[Any]] = {_TOKENS: np.array(tokens, np.int32)}
        arrays |= {name: cache.rows(name, 0, len(tokens)) for name in cache.names}
        header, at = dict[str, Any]({_METADATA: {"identity": self.identity}}), 0
        for name, array in arrays.items():
            span = [at, at := at + array.nbytes]
            header[name] = {"dtype": _NAMES[array.dtype], "shape": list(array.shape), "data_offsets": span}
        checksum = _start_of_checksum(header)
        for array in _while_not(until, arrays.values()):
            checksum = zlib.crc32(np.ascontiguousarray(array).data, checksum)
        header[_METADATA]["crc32"] = str(checksum)
        encoded = json.dumps(header).encode()
        name = sha256(arrays[_TOKENS].tobytes()).hexdigest()[:16]
        with replacing(self.folder / f"{self._key}-{name}{_SUFFIX}") as fresh, _private(fresh) as stream:
            stream.write(len(encoded).to_bytes(8, "little") + encoded)
            for array in _while_not(until, arrays.values()):
                stream.write(np.ascontiguousarray(array).data)

    def _delete_leftovers(self) -> None:
        """Delete what a killed process left half-written."""
        for file, status in self._listed(f".*{_SUFFIX}.*"):
            if status.st_mtime < time.time() - _ABANDONED:
                file.unlink(missing_ok=True)

    def _keep_to_budget(self) -> None:
        """Delete what was used least recently, but never the newest file."""
        files = sorted(self._listed(f"*{_SUFFIX}"), key=lambda each: each[1].st_mtime_ns)
        excess = sum(status.st_size for _, status in files) - self._budget
        for file, status in files[:-1]:
            if excess <= 0:
                break
            excess -= status.st_size
            file.unlink(missing_ok=True)

    def _listed(self, pattern: str) -> Iterator[tuple[Path, os.stat_result]]:
        """The files of all models; other processes may delete some at any time."""
        for file in self.folder.glob(pattern):
            with suppress(FileNotFoundError):
                yield file, file.stat()


def _while_not(until: Callable[[], bool], arrays: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
    """The arrays, each a few megabytes. Raises InterruptedError as soon as `until()` holds."""
    for array in arrays:
        if until():
            raise InterruptedError
        yield array


def _start_of_checksum(header: dict[str, Any]) -> int:
    """The checksum of the header itself, with which that of all that follows begins."""
    plain = header | {_METADATA: {"identity": header[_METADATA]["identity"]}}
    return zlib.crc32(json.dumps(plain, sort_keys=True).encode())


def _array(content: NDArray[np.uint8], entry: dict[str, Any]) -> NDArray[Any]:
    first, end = entry["data_offsets"]
    return content[first:end].view(_KINDS[entry["dtype"]]).reshape(entry["shape"])


def _form(rows: NDArray[Any]) -> tuple[Any, ...]:
    """Type and shape of rows, but for their number."""
    return rows.dtype, *rows.shape[:2], *rows.shape[3:]


def _private(file: Path) -> Any:
    """A file for writing that only its owner can read: a conversation can be told from its keys and values."""
    return os.fdopen(
        os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o600), "wb"
    )
