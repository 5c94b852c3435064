"""The sampling parameters of an answer, validated."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.tokenizer import require_text

_MOST, _MOST_BIAS = 1e6, 1e30


@dataclass(frozen=True, slots=True)
class Number:
    """What a parameter that is a number may be, and how the command line and the chat present it.

    Attributes:
        kind: int or float; an `optional` one may also be None.
        limits: The least and the largest value, and how an error describes them.
        help: The help text of the option.
        chat: Label and hint in the chat's settings, and the least and the largest value that can be typed there.
    """

    kind: type
    optional: bool
    limits: tuple[float, float, str]
    help: str
    chat: tuple[str, str, float, float]

    def allows(self, value: Any) -> bool:
        """Whether `value` is of the right type and within the limits."""
        low, high, _ = self.limits
        kind = Integral if self.kind is int else Real
        return (self.optional and value is None) or (_is(kind, value) and low <= value <= high)


def _number(default: float | None, **description: Any) -> Any:
    """A field of `Parameters` that is a number."""
    kind = float if isinstance(default, float) else int
    number = Number(kind=kind, optional=default is None, **description)
    return field(default=default, metadata={"number": number})


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """How an answer is sampled and when it ends. Raises SpecdecError for a value outside its range.

    Numbers of any type (numpy's, Fraction, Decimal) are kept as int and float.

    Attributes:
        max_new_tokens: The length limit of the answer.
        temperature: 0 is greedy.
        top_k: Sample from the k likeliest tokens; 0 is off.
        top_p: Sample from the likeliest tokens that together have this probability; 1 is off.
        min_p: Sample from tokens at least this likely, relative to the likeliest; 0 is off.
        repetition_penalty: Applied to tokens in the prompt and the answer, as in Hugging Face; 1 is off.
        presence_penalty: Applied to tokens in the answer, as in OpenAI's API; 0 is off.
        frequency_penalty: Applied for each occurrence in the answer, as in OpenAI's API; 0 is off.
        logit_bias: Added to the logits of these token ids; -inf bans a token.
        seed: Makes a sampled answer reproducible: the same in every mode.
        stop: Strings that end the answer and are left out of it; a special token's spelling works too.
    """

    max_new_tokens: int = _number(
        512,
        limits=(1, math.inf, "a whole number, 1 or more"),
        help="stop after N new tokens (default: {})",
        chat=("Longest answer", "tokens", 1, 1_000_000),
    )
    temperature: float = _number(
        0.0,
        limits=(0, _MOST, "a number from 0 (greedy) to 1,000,000"),
        help="0 always takes the likeliest token",
        chat=("Temperature", "0 is greedy", 0, 5),
    )
    top_k: int = _number(
        0,
        limits=(0, math.inf, "a whole number, 0 (off) or more"),
        help="sample among the N likeliest tokens only",
        chat=("Top k", "0 is off", 0, 1_000_000),
    )
    top_p: float = _number(
        1.0,
        limits=(5e-324, 1, "a number above 0 and at most 1"),
        help="sample among the likeliest tokens that together have this probability",
        chat=("Top p", "1 is off", 0, 1),
    )
    min_p: float = _number(
        0.0,
        limits=(0, math.nextafter(1, 0), "a number at least 0 and below 1"),
        help="drop tokens whose probability is below this share of the likeliest one's",
        chat=("Min p", "0 is off", 0, 1),
    )
    repetition_penalty: float = _number(
        1.0,
        limits=(1 / _MOST, _MOST, "a number from 0.000001 to 1,000,000"),
        help="divide the score of tokens already seen by this (1 is off)",
        chat=("Repetition penalty", "1 is off", 0.1, 10),
    )
    presence_penalty: float = _number(
        0.0,
        limits=(-_MOST, _MOST, "a number from -1,000,000 to 1,000,000"),
        help="subtract this from the score of tokens already written",
        chat=("Presence penalty", "0 is off", -10, 10),
    )
    frequency_penalty: float = _number(
        0.0,
        limits=(-_MOST, _MOST, "a number from -1,000,000 to 1,000,000"),
        help="subtract this for each time a token was written",
        chat=("Frequency penalty", "0 is off", -10, 10),
    )
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = _number(
        None,
        limits=(0, math.inf, "a whole number, 0 or more"),
        help="make sampling repeatable",
        chat=("Seed", "empty is random", 0, 2**63 - 1),
    )
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        elif isinstance(self.stop, Iterable) and not isinstance(self.stop, bytes):
            object.__setattr__(self, "stop", tuple(self.stop))
        for name in NUMBERS:
            object.__setattr__(self, name, _plain(getattr(self, name)))
        if isinstance(self.logit_bias, Mapping):
            biases = {_plain(token): _plain(bias) for token, bias in self.logit_bias.items()}
            object.__setattr__(self, "logit_bias", biases)
        _check(self)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """Whether a token's score depends on the tokens before it."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)


NUMBERS: dict[str, Number] = {
    each.name: each.metadata["number"] for each in fields(Parameters) if each.metadata
}
"""The parameters that are numbers: each is an option of the command line and an input of the chat's settings."""


def _plain(value: Any) -> Any:
    """A number as Python's own int or float; anything else, and what is no finite float, as it is."""
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, (Real, Decimal)):
        try:
            return float(value)
        except (OverflowError, ValueError):
            return value
    return value


def _check(parameters: Parameters) -> None:
    for name, number in NUMBERS.items():
        value = getattr(parameters, name)
        if not number.allows(value):
            fix = "leave it out for a random one" if name == "seed" else ""
            raise SpecdecError(f"{name} is {value!r}", f"it must be {number.limits[2]}", fix)
    stops = parameters.stop
    if not (isinstance(stops, tuple) and all(isinstance(text, str) and text for text in stops)):
        raise SpecdecError(f"stop is {stops!r}", "it must be one or more texts, none of them empty")
    for text in stops:
        require_text(text, f"stop {text!a}")
    if not isinstance(parameters.logit_bias, Mapping):
        raise SpecdecError(f"logit_bias is {parameters.logit_bias!r}", "it must map token ids to numbers")
    for token, bias in parameters.logit_bias.items():
        if not (_is(Integral, token) and token >= 0 and _is(Real, bias) and bias <= _MOST_BIAS):
            raise SpecdecError(
                f"logit_bias is {{{token!r}: {bias!r}}}",
                "it must map token ids to numbers up to 1e30 (-inf bans)",
            )


def _is(kind: type, value: object) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
