"""What was measured of a model on this machine, stored between runs."""

import hashlib
import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnxruntime as ort

from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.models.system import cache_folder, replacing
from specdec_onnx.runtime.machine.costs import DRAFT_WIDTHS, TARGET_WIDTHS, Curve, measure_curve
from specdec_onnx.runtime.machine.self_test import Identity, settle_padding, settle_width
from specdec_onnx.runtime.model.decoder import Decoder, Padding

_VERSION = 4


@dataclass(frozen=True, slots=True)
class Profile:
    """A model on one device: seconds by pass width, and whether verifying passes give the logits of plain steps.

    A draft model is not tested, because nothing depends on it. `fingerprint` stands for all that costs and bits depend on.
    """

    curve: Curve
    identity: Identity
    fingerprint: str = ""


def profile_model(
    model: ModelFolder,
    decoder: Decoder,
    device: str,
    threads: int,
    on_measure: Callable[[], None] | None = None,
) -> Profile:
    """What was measured before, or is now (seconds); sets the decoder's padding and widest pass."""
    fingerprint = _fingerprint(model, device, threads, decoder.exact)
    file = _file(fingerprint)
    if stored := _read(file):
        decoder.padding, decoder.widest = Padding(*stored["padding"]), stored["widest"]
        return Profile(_curve(stored), Identity(stored.get("max_difference", 0.0)), fingerprint)
    if on_measure is not None:
        on_measure()
    settle_width(decoder)
    identity = settle_padding(decoder) if decoder.exact else Identity(0.0)
    curve = measure_curve(decoder, TARGET_WIDTHS if decoder.exact else DRAFT_WIDTHS)
    padding = (decoder.padding.multiple, decoder.padding.tile)
    costs = {"widths": curve.widths, "seconds": curve.seconds, "per_token": curve.per_token}
    found = costs | {"padding": padding, "widest": decoder.widest}
    _store(file, found | asdict(identity))
    return Profile(curve, identity, fingerprint)


def known_curve(model: ModelFolder, device: str, threads: int, *, exact: bool) -> Curve | None:
    """Costs that were measured before, or None."""
    stored = _read(_file(_fingerprint(model, device, threads, exact)))
    return _curve(stored) if stored else None


def _curve(stored: dict[str, Any]) -> Curve:
    return Curve(tuple(stored["widths"]), tuple(stored["seconds"]), tuple(stored["per_token"]))


def _file(fingerprint: str) -> Path:
    """Where the measurements are stored."""
    return cache_folder() / "profiles" / f"{hashlib.sha256(fingerprint.encode()).hexdigest()[:24]}.json"


def _fingerprint(model: ModelFolder, device: str, threads: int, exact: bool) -> str:
    parts: list[Any] = [_VERSION, device, threads, exact, ort.__version__]
    parts += [platform.machine(), platform.processor(), platform.node(), os.cpu_count()]
    for file in sorted(model.graph.parent.iterdir()):
        status = file.stat()
        parts += [str(file.resolve()), status.st_size, status.st_mtime_ns]
    return repr(parts)


def _read(file: Path) -> dict[str, Any]:
    try:
        stored: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return stored if {"widths", "seconds", "per_token", "padding", "widest"} <= stored.keys() else {}


def _store(file: Path, content: dict[str, Any]) -> None:
    """Store; if that is not possible, the next run just measures again."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as fresh:
            fresh.write_text(json.dumps(content))
    except OSError:
        pass
