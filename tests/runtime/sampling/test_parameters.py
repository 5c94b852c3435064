"""What a user sets is checked by name."""

import math

import pytest

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.runtime.sampling.sampler import Sampler


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
        {"logit_bias": {"a": 1.0}}, {"logit_bias": {1: "much"}},
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
