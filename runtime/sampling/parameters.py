"""The sampling parameters of an answer, validated."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Integral, Real
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.tokenizer import require_text


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

    max_new_tokens: int = 512
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        elif isinstance(self.stop, Iterable) and not isinstance(self.stop, bytes):
            object.__setattr__(self, "stop", tuple(self.stop))
        for name in (*_RANGES, "seed"):
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


_MOST, _MOST_BIAS = 1e6, 1e30
_RANGES: dict[str, tuple[type, float, float, str]] = {
    "max_new_tokens": (Integral, 1, math.inf, "a whole number, 1 or more"),
    "temperature": (Real, 0, _MOST, "a number from 0 (greedy) to 1,000,000"),
    "top_k": (Integral, 0, math.inf, "a whole number, 0 (off) or more"),
    "top_p": (Real, 5e-324, 1, "a number above 0 and at most 1"),
    "min_p": (Real, 0, math.nextafter(1, 0), "a number at least 0 and below 1"),
    "repetition_penalty": (Real, 1 / _MOST, _MOST, "a number from 0.000001 to 1,000,000"),
    "presence_penalty": (Real, -_MOST, _MOST, "a number from -1,000,000 to 1,000,000"),
    "frequency_penalty": (Real, -_MOST, _MOST, "a number from -1,000,000 to 1,000,000"),
}


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
    for name, (kind, low, high, words) in _RANGES.items():
        value = getattr(parameters, name)
        if not (_is(kind, value) and low <= value <= high):
            raise SpecdecError(f"{name} is {value!r}", f"it must be {words}")
    seed = parameters.seed
    if seed is not None and not (_is(Integral, seed) and seed >= 0):
        why = "it must be a whole number, 0 or more"
        raise SpecdecError(f"seed is {seed!r}", why, "leave it out for a random one")
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
