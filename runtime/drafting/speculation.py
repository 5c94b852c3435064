"""Who proposes in which mode, and the planner that goes with it."""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.runtime.drafting.draft_model import DraftModel
from specdec_onnx.runtime.drafting.planner import Planner
from specdec_onnx.runtime.drafting.proposer import Proposal, Proposer, Worth
from specdec_onnx.runtime.drafting.suffix import Reliability, Suffix
from specdec_onnx.runtime.machine.costs import Curve
from specdec_onnx.runtime.model.decoder import Decoder
from specdec_onnx.runtime.sampling.sampler import Parameters, Sampler
from specdec_onnx.runtime.sampling.verification import Rule


class Chain:
    """Two proposers in turn, by expected gain."""

    name = "auto"

    def __init__(self, free: Proposer, draft: DraftModel, planner: Planner) -> None:
        self._free, self._draft, self._planner = free, draft, planner
        self._lead: list[int] = []  # free tokens in front of the draft model's part
        self._rests = False

    def propose(self, context: Sequence[int], limit: int, worth: Worth) -> Proposal:
        """Up to `limit` tokens; what the draft model costs is weighed against what it usually brings."""
        free = self._free.propose(context, limit, worth)
        switch = self._planner.draft_switch
        self._rests = not switch.on
        if self._rests:
            switch.idle()
            return free
        if self._planner.gain(list(accumulate(free.confidence, mul))) < self._planner.draft_gain():
            free = Proposal()
        self._lead = free.tokens
        extended = [*context, *free.tokens] if free.tokens else context
        return free.then(self._draft.propose(extended, limit - len(free), worth, after=free))

    def observe(self, emitted: Sequence[int]) -> None:
        """Tell both what the target said; the draft model only if its part was reached."""
        self._free.observe(emitted)
        reached = len(self._lead)
        if not self._rests and list(emitted[:reached]) == self._lead:
            self._draft.observe(emitted[reached:], alone=not reached)


MODES = ("plain", "suffix", "draft", "auto")
"""No speculation; the text so far; the draft model; all there is, by what pays."""


class Speculation:
    """The proposers of one engine; each mode has running averages of its own over shared cost curves.

    From one answer to the next carries over what was learned about the machine and the pair: costs, acceptance, whether
    the draft model pays, how far beliefs and matches can be trusted. All of it describes
    the pair, and what depends on the text follows it within some twenty rounds. What was read carries over only as far as it is equal: caches are compared with the new
    context, and a store of text belongs to its conversation. Nothing that waits for a verdict carries over.
    """

    def __init__(
        self, target_cost: Curve, draft: tuple[ModelFolder, Decoder, Curve] | None, vocab_size: int
    ) -> None:
        self.modes = tuple(mode for mode in MODES if draft or mode != "draft")
        self._planners = {mode: Planner(target_cost, draft[2] if draft else None) for mode in self.modes}
        self._columns = draft[0].trimmed_vocabulary if draft else None
        self._vocab_size = vocab_size
        self.draft = DraftModel(draft[1]) if draft else None
        self._reliability = Reliability()

    def suffix(self) -> Suffix:
        """A new store of text; all of them share what was learned about trusting a match."""
        return Suffix(reliability=self._reliability)

    def planner(self, mode: str) -> Planner:
        """The planner of a mode; SpecdecError when there is no such mode here."""
        if mode in self._planners:
            return self._planners[mode]
        if mode == "draft":
            raise SpecdecError(
                "there is no draft model", "this is a single model", "use suffix or auto, or name a draft"
            )
        raise SpecdecError(f"unknown mode {mode!r}", fix=f"choose one of {', '.join(self.modes)}")

    def proposer(self, mode: str, parameters: Parameters, rule: Rule, suffix: Suffix) -> Proposer | None:
        """The proposer of a mode, ready for an answer by `rule`; None for plain decoding."""
        planner = self.planner(mode)
        if mode == "plain":
            return None
        if mode == "suffix" or self.draft is None:
            return suffix
        self.draft.begin(rule, Sampler(parameters, self._vocab_size, self._columns), planner)
        return self.draft if mode == "draft" else Chain(suffix, self.draft, planner)

    def prepare(self, mode: str, prompt: list[int]) -> None:
        """Let the draft model read the prompt, unless it is not going to draft soon."""
        if self.draft is not None and (
            mode == "draft" or (mode == "auto" and self.planner(mode).draft_switch.on)
        ):
            self.draft.prepare(prompt)
