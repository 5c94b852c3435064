"""What a user sets is checked by name."""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.drafting.proposer import Proposal
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.runtime.sampling.sampler import History, Sampler
from specdec_onnx.runtime.sampling.verification import make_rule


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -0.1}, {"temperature": math.nan}, {"temperature": "hot"}, {"temperature": True},
        {"top_p": 0.0}, {"top_p": 1.1}, {"top_k": -1}, {"top_k": 2.5}, {"min_p": 1.0}, {"min_p": -0.1},
        {"repetition_penalty": 0.0}, {"presence_penalty": math.inf}, {"frequency_penalty": None},
        {"max_new_tokens": 0}, {"max_new_tokens": -1}, {"max_new_tokens": 1.5}, {"max_new_tokens": None},
        {"stop": ""}, {"stop": None}, {"stop": 5}, {"stop": b"END"}, {"stop": "cut \ud83d"}, {"stop": ["a", "\udc80"]},
        {"logit_bias": None}, {"logit_bias": [1]}, {"temperature": None}, {"seed": math.nan}, {"seed": True},
        {"seed": -1}, {"seed": 1.5}, {"stop": ("",)}, {"stop": (3,)},
        {"logit_bias": {-1: 1.0}}, {"logit_bias": {1: math.inf}}, {"logit_bias": {1: math.nan}},
        {"logit_bias": {"a": 1.0}}, {"logit_bias": {1: "much"}}, {"logit_bias": {1: 1e308}},
        {"repetition_penalty": 5e-324}, {"temperature": Decimal("nan")}, {"temperature": 1e7},
    ],
)  # fmt: skip
def test_a_value_outside_its_range_is_refused_by_name(fields: dict[str, object]) -> None:
    with pytest.raises(SpecdecError, match=next(iter(fields))):
        Parameters(**fields)  # type: ignore[arg-type]


def test_a_bias_on_a_token_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SpecdecError, match="5"):
        Sampler(Parameters(logit_bias={5: 1.0}), 5)


def test_one_stop_may_be_given_as_a_text() -> None:
    assert Parameters(stop="END").stop == ("END",)  # type: ignore[arg-type]
    assert Parameters(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]
    assert Parameters().greedy and not Parameters(temperature=0.1).greedy
    assert Parameters(presence_penalty=0.1).penalised and not Parameters(logit_bias={1: 1.0}).penalised


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint8, np.int8])
def test_a_seed_is_a_whole_number_of_any_type(kind: type) -> None:
    def chosen(seed: Any) -> list[int]:
        rule = make_rule(Parameters(temperature=1.0, seed=seed), 50, [])
        rows = np.zeros((9, 50), np.float32)
        return [rule.verify(rows[at:], Proposal()).token for at in range(3)]

    assert chosen(kind(7)) == chosen(7)


def test_numbers_of_any_type_are_taken() -> None:
    made = Parameters(
        temperature=Decimal("0.5"),  # type: ignore[arg-type]
        top_p=Fraction(1, 2),  # type: ignore[arg-type]
        min_p=np.float32(0.25),  # type: ignore[arg-type]
        max_new_tokens=np.int8(100),  # type: ignore[arg-type]
        logit_bias={np.int64(3): np.float16(1)},  # type: ignore[dict-item]
    )
    assert made == Parameters(temperature=0.5, top_p=0.5, min_p=0.25, max_new_tokens=100, logit_bias={3: 1.0})
    assert made.max_new_tokens - 300 == -200, "numpy's int8 would overflow"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bias", [-math.inf, -1e308])
def test_a_bias_that_leaves_no_token_is_named(temperature: float, bias: float) -> None:
    banned = Parameters(temperature=temperature, logit_bias=dict.fromkeys(range(5), bias))
    with pytest.raises(SpecdecError, match="no token is left") as caught:
        Sampler(banned, 5).distribution(np.zeros(5, np.float32), History())
    assert "logit_bias" in caught.value.why
