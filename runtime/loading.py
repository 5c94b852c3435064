"""From folders on disk to measured decoders on their devices."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial

from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.models.pair import Pair
from specdec_onnx.runtime.costs import Curve
from specdec_onnx.runtime.decoder import Decoder
from specdec_onnx.runtime.device import Device
from specdec_onnx.runtime.footprint import cache_rows, check_memory, footprints
from specdec_onnx.runtime.placement import Placement, Placer, draft_cost, target_cost
from specdec_onnx.runtime.profile import Profile, known_curve, profile_draft, profile_target


class Loader:
    """Opens models with room for `context` tokens on `threads` threads."""

    def __init__(self, context: int, threads: int = 0, on_measure: Callable[[], None] | None = None) -> None:
        self.context, self.threads, self._on_measure = context, threads, on_measure
        self._ahead: Future[Decoder] | None = None

    def open_ahead(self, draft: ModelFolder, device: str) -> None:
        """Begin to open a draft for the CPU while its target is opened: each keeps one core busy."""
        if device == "cpu":
            executor = ThreadPoolExecutor(1)
            self._ahead = executor.submit(self._open, draft, Device(), exact=False)
            executor.shutdown(wait=False)

    def target(self, model: ModelFolder, device: str) -> tuple[Placement, Decoder, Profile]:
        """A target on the device called `device`, with its costs and the verdict of its self-test."""

        def opener(place: Device) -> tuple[Decoder, Profile]:
            decoder = self._open(model, place, exact=True)
            if self._ahead is not None:
                wait([self._ahead])  # nothing else may run while costs are measured
            return decoder, profile_target(model, decoder, place.fingerprint, self.threads, self._on_measure)

        known = partial(self._known, model, target_cost, exact=True)
        return Placer(opener, lambda profile: target_cost(profile.curve), known).place(device)

    def draft(self, model: ModelFolder, device: str) -> tuple[Placement, Decoder, Curve]:
        """A draft on the device called `device`, with its costs."""

        def opener(place: Device) -> tuple[Decoder, Curve]:
            decoder = self._ahead.result() if self._ahead else self._open(model, place, exact=False)
            return decoder, profile_draft(model, decoder, place.fingerprint, self.threads)

        known = partial(self._known, model, draft_cost, exact=False)
        return Placer(opener, draft_cost, known).place(device)

    def capacity(self, model: ModelFolder) -> int:
        """Cache rows of `model`."""
        return cache_rows(model, self.context)

    def check(self, pair: Pair, device: str, draft_device: str) -> None:
        """Raise SpecdecError when what runs in host memory does not fit there."""
        on_host = {"target": device == "cpu", "draft": draft_device == "cpu"}
        models = {"target": pair.target} | ({"draft": pair.draft} if pair.draft else {})
        needs = {role: need for role, need in footprints(models, self.context).items() if on_host[role]}
        check_memory(needs, self.context)

    def _open(self, model: ModelFolder, device: Device, *, exact: bool) -> Decoder:
        capacity = self.capacity(model)
        return Decoder.open(model, device=device, capacity=capacity, exact=exact, threads=self.threads)

    def _known(
        self, model: ModelFolder, cost: Callable[[Curve], float], device: Device, *, exact: bool
    ) -> float | None:
        curve = known_curve(model, device.fingerprint, self.threads, exact=exact)
        return None if curve is None else cost(curve)
