"""Speculative decoding of one engine: which proposer drafts in which mode, and what it learns.

The modes:

- `plain`: no drafts. One target pass per token; the reference for what the other modes must reproduce.
- `suffix`: drafts continue the longest match of the text's end in the prompt and earlier text. Costs no model pass,
  only the additional rows of the target's pass.
- `draft`: the draft model writes ahead. Each drafted token costs a pass of the draft model.
- `auto`: both. In each round the suffix proposer drafts first. Its draft is used if it is worth more than the draft
  model's usual one; the draft model then continues it, and otherwise drafts by itself. Four estimates decide, all of
  them learned while the engine runs: the cost of passes by width (`Curve`), the chance that a suffix match is right
  (`Reliability`) or that a drafted token is accepted given the draft model's belief (`Calibration`), and whether rounds
  with the draft model beat plain decoding at all (`Switch`: when they do not, the draft model rests and is tried again
  later). The `Planner` drafts and verifies a further token only while its expected gain exceeds its time.

What carries over from one answer to the next is knowledge about the machine and the pair: costs, acceptance,
reliability, calibration and the switch; running averages follow a new text within about twenty rounds. Text carries
over only as far as it is the same: caches are compared with each new context, and a suffix store belongs to one
conversation. A proposal that was not judged in its own round is forgotten.
"""

import time
from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from math import prod
from operator import mul

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.runtime.drafting.forced import GRAMMAR, Forced, Share
from specdec_onnx.runtime.drafting.planner import Planner
from specdec_onnx.runtime.drafting.proposer import Custom, Proposal, Proposer, Worth
from specdec_onnx.runtime.drafting.suffix import Reliability, Suffix
from specdec_onnx.runtime.machine.costs import Curve
from specdec_onnx.runtime.model.decoder import Decoder, Tape
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.runtime.sampling.sampler import Categorical, NothingLeftError, Sampler
from specdec_onnx.runtime.sampling.verification import Rule

MODES = ("plain", "suffix", "draft", "auto")


class Speculation:
    """The proposers of one engine; each mode has a planner of its own, over shared cost curves."""

    def __init__(
        self, target_cost: Curve, draft: tuple[ModelFolder, Decoder, Curve] | None, vocab_size: int
    ) -> None:
        self.modes = tuple(mode for mode in MODES if draft or mode != "draft")
        self.vocab_size = vocab_size
        self.draft = DraftModel(draft[1]) if draft else None
        self.tapes = (self.draft.tape,) if self.draft else ()
        self._planners = {mode: Planner(target_cost, draft[2] if draft else None) for mode in self.modes}
        self._draft_columns = draft[0].trimmed_vocabulary if draft else None
        self._reliability, self._forced = Reliability(), Share()

    def suffix(self) -> Suffix:
        """A new store of text; all stores share what was learned about the reliability of matches."""
        return Suffix(reliability=self._reliability)

    def planner(self, mode: str) -> Planner:
        """The planner of a mode. Raises SpecdecError if this engine does not have that mode."""
        if isinstance(mode, str) and mode in self._planners:
            return self._planners[mode]
        if mode == "draft":
            raise SpecdecError(
                "there is no draft model", "this is a single model", "use suffix or auto, or name a draft"
            )
        raise SpecdecError(f"unknown mode {mode!r}", fix=f"choose one of {', '.join(self.modes)}")

    def proposer(
        self, mode: str, parameters: Parameters, rule: Rule, suffix: Suffix, custom: Proposer | None = None
    ) -> Proposer | None:
        """The proposer of a mode, ready for an answer that `rule` verifies; None for plain decoding.

        A `custom` one takes the place of the mode's own; only a grammar still drafts besides it.
        """
        planner, guide = self.planner(mode), rule.history.guide
        if mode == "plain":
            return None
        free: Proposer = Custom(custom, self.vocab_size) if custom is not None else suffix
        if guide is not None:
            free = Forced(guide, free, self._forced)
        if mode == "suffix" or self.draft is None or custom is not None:
            return free
        sampler = Sampler(parameters, self.vocab_size, self._draft_columns)
        self.draft.begin(rule, sampler, planner, self._forced)
        return self.draft if mode == "draft" else Chain(free, self.draft, planner)

    def prepare(self, mode: str, prompt: list[int]) -> None:
        """Let the draft model read the prompt, unless it will not draft soon."""
        if self.draft and (mode == "draft" or (mode == "auto" and self.planner(mode).draft_switch.on)):
            self.draft.prepare(prompt)


class Chain:
    """The proposer of mode `auto`: drafts that cost nothing, continued or replaced by the draft model's."""

    name = "auto"

    def __init__(self, free: Proposer, draft: "DraftModel", planner: Planner) -> None:
        self._free, self._draft, self._planner = free, draft, planner
        self._lead: list[int] = []  # the free tokens before the draft model's part
        self._rests = False

    def propose(self, context: Sequence[int], limit: int, worth: Worth) -> Proposal:
        """Up to `limit` tokens; the draft model's time is weighed against what its drafts usually gain."""
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
        """Pass the target's tokens on to both; to the draft model only if its part was reached."""
        self._free.observe(emitted)
        reached = len(self._lead)
        if not self._rests and list(emitted[:reached]) == self._lead:
            self._draft.observe(emitted[reached:], alone=not reached)


class DraftModel:
    """A smaller model with the target's vocabulary; drafts token by token while another one pays.

    Its cache outlives an answer, so that a conversation is read once. Calibration outlives it too, separately for each
    kind of rule, because a likeliest token and a drawn one are accepted for different reasons.
    """

    name = "draft"

    def __init__(self, decoder: Decoder) -> None:
        self.tape = Tape(decoder)
        self._calibrations: dict[type[Rule], Calibration] = {}
        self._proposal = Proposal()
        self._beliefs: list[float | None] = []  # None where a grammar forced the token

    def begin(self, rule: Rule, sampler: Sampler, planner: Planner, forced: Share | None = None) -> None:
        """Draft the next answer by its own rule; `sampler` works on the columns of the draft's logits."""
        self._rule, self._sampler, self._planner, self._forced = rule, sampler, planner, forced or Share()
        self._calibration = self._calibrations.setdefault(type(rule), Calibration())
        self._proposal, self._beliefs = Proposal(), []

    def prepare(self, context: Sequence[int]) -> None:
        """Read `context` except for its last token; a context that is too long is not read."""
        if len(context) <= self.tape.decoder.capacity:
            self.tape.forward(context[self.tape.turn_to(context[:-1]) : -1], keep=1)

    def propose(
        self, context: Sequence[int], limit: int, worth: Worth, *, after: Proposal | None = None
    ) -> Proposal:
        """Up to `limit` tokens to follow `context`, which ends in the tokens of the proposal `after`.

        Drafting ends when the next token is not worth its pass, or would not be worth verifying. Nothing is drafted
        when the draft model's context is full.
        """
        lead, history, guide = after or Proposal(), self._rule.history, self._rule.history.guide
        chance, position = prod(lead.confidence), len(lead)
        proposal, self._beliefs = Proposal(), []
        self._proposal = proposal
        limit = min(limit, self.tape.decoder.capacity - len(context) - 1)
        unread = context[self.tape.turn_to(context[:-1]) :] if limit > 0 else ()
        history.extend(lead.tokens)
        try:
            while len(proposal) < limit and self._planner.worth_drafting(chance, position + 1):
                if guide is not None:
                    wanted = guide.forced()[: limit - len(proposal)]
                    forced = self._skip(proposal, wanted, chance, position, worth)
                    chance, position = chance * self._forced.value ** len(forced), position + len(forced)
                    unread = [*unread, *forced]
                    if guide.ended or len(forced) < len(wanted) or len(proposal) == limit:
                        break
                start = time.perf_counter()
                row = self.tape.forward(unread, keep=1)[-1]
                self._planner.observe_draft_pass(len(unread), time.perf_counter() - start)
                try:
                    following, belief = self._rule.expect(row, self._sampler)
                except NothingLeftError:
                    break  # all tokens of a trimmed vocabulary are banned, the target has others
                confidence = self._calibration(belief)
                self._beliefs.append(belief)
                chance, position = chance * confidence, position + 1
                if not worth(chance, position):
                    break
                q = following if isinstance(following, Categorical) else None
                token = self._rule.draw(following) if isinstance(following, Categorical) else following
                proposal.add(token, confidence, self.name, q)
                history.push(token)
                unread = [token]
            return proposal
        finally:
            history.pop(len(lead) + len(proposal))

    def _skip(
        self, proposal: Proposal, forced: Sequence[int], chance: float, position: int, worth: Worth
    ) -> Sequence[int]:
        """Draft the tokens that a grammar forces, without a pass, as far as they are worth verifying; returns these."""
        for count, token in enumerate(forced):
            chance, position = chance * self._forced.value, position + 1
            if not worth(chance, position):
                return forced[:count]
            self._beliefs.append(None)
            proposal.add(token, self._forced.value, GRAMMAR)
            self._rule.history.push(token)
        return forced

    def observe(self, emitted: Sequence[int], *, alone: bool = True) -> None:
        """Compare the last proposal with the target's tokens in its place; `alone` if nobody drafted before it."""
        accepted, proposal, beliefs = 0, self._proposal, self._beliefs
        self._proposal, self._beliefs = Proposal(), []
        for drafted, token, belief in zip(proposal.tokens, emitted, beliefs, strict=False):
            if belief is None:
                self._forced.observe(drafted == token)
            else:
                self._calibration.observe(belief, drafted == token)
            if drafted != token:
                break
            accepted += 1
        if beliefs:
            self._planner.observe_draft(len(proposal), accepted, alone=alone)


_EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999)
"""Bounds of the belief bins, finer where a draft model spends most of its tokens."""

_PRIOR = 8.0
"""How many observations the belief itself counts for in its bin."""


class Calibration:
    """The observed chance that a drafted token is accepted, by the draft model's belief in it (its probability)."""

    def __init__(self) -> None:
        self._kept = [0.0] * (len(_EDGES) + 1)
        self._seen = [0.0] * (len(_EDGES) + 1)

    def __call__(self, belief: float) -> float:
        """The chance that a token drafted with this belief is accepted."""
        bin_ = bisect(_EDGES, belief)
        return (self._kept[bin_] + _PRIOR * belief) / (self._seen[bin_] + _PRIOR)

    def observe(self, belief: float, kept: bool) -> None:
        """Count one checked token."""
        bin_ = bisect(_EDGES, belief)
        self._seen[bin_] += 1
        self._kept[bin_] += kept
