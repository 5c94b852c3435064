"""Follow every path of every coin: the exact distribution of what a random procedure returns."""

from collections.abc import Callable, Iterator

from support.speculation import PROMPT, Propose, Table, Verify, one_round, target_joint

from specdec_onnx.runtime.sampling.sampler import Categorical, Chance, History, Sampler


class Fork(Chance):
    """Randomness that follows a script and notes, where the script ends, which ways were left."""

    def __init__(self, script: tuple[int, ...]) -> None:
        self.script, self.step, self.share = script, 0, 1.0
        self.left: list[tuple[int, ...]] = []

    def flip(self, probability: float) -> bool:
        heads = min(probability, 1.0)
        return self._choose([(1, heads), (0, 1 - heads)]) == 1

    def draw(self, categorical: Categorical) -> int:
        return self._choose(
            list(zip(categorical.token_ids.tolist(), categorical.probs.tolist(), strict=True))
        )

    def _choose(self, options: list[tuple[int, float]]) -> int:
        options = [(option, share) for option, share in options if share > 0]
        if self.step == len(self.script):
            self.left += [(*self.script, option) for option, _ in options[1:]]
            self.script += (options[0][0],)
        chosen = self.script[self.step]
        self.step += 1
        self.share *= dict(options)[chosen]
        return chosen


def every_path(run: Callable[[Chance], tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], float]]:
    """Each way `run` can go, with its probability; they add up to 1."""
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        fork = Fork(scripts.pop())
        yield run(fork), fork.share
        scripts += fork.left


def round_joint(
    model: Table, sampler: Sampler, propose: Propose, verify: Verify, length: int
) -> dict[tuple[int, ...], float]:
    """The exact distribution of answers of `length` tokens when one speculative round starts them.

    The round is followed on every path; behind it the target goes on by itself.
    """
    target = target_joint(model, sampler.parameters, length)
    joint = dict.fromkeys(target, 0.0)

    def run(chance: Chance) -> tuple[int, ...]:
        history = History(PROMPT)
        one_round(model, sampler, propose, verify, chance, history)
        return tuple(history.output)[:length]

    for emitted, share in every_path(run):
        rest = {tokens: mass for tokens, mass in target.items() if tokens[: len(emitted)] == emitted}
        for tokens, mass in rest.items():
            joint[tokens] += share * mass / (sum(rest.values()) or float("nan"))
    return joint
