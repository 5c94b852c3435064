"""The text of an answer with tokenizers other than byte-level BPE, what stops it, and prompts that are no prompts."""

from typing import Any

import numpy as np
import pytest
from support.tiny import export_tiny
from support.tokenizer_kinds import export_kind

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.runtime.chat import Transcript
from specdec_onnx.runtime.engine import Engine, load
from specdec_onnx.runtime.text.prompt import Prompt


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return load(export_tiny(tmp_path_factory.mktemp("models") / "plain", format="w8a8", seed=11))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return load(export_kind("llama", tmp_path_factory.mktemp("models") / "llama"))


def only(engine: Engine, token: str) -> dict[int, float]:
    """A bias that lets the model say nothing else."""
    number = engine.tokenizer.id_of(token)
    assert number is not None
    return {number: 1e9}


def test_the_first_space_of_a_continuation_is_kept(llama: Engine) -> None:
    prompt = [llama.tokenizer.id_of(piece) or 0 for piece in ("▁Paris", "▁is▁")]
    assert llama.generate(prompt, max_new_tokens=2, logit_bias=only(llama, "▁Paris")) == " Paris Paris"
    begins = [llama.tokenizer.id_of("<s>") or 0]
    assert llama.generate(begins, max_new_tokens=2, logit_bias=only(llama, "▁Paris")) == "Paris Paris"


@pytest.mark.parametrize("seed", range(6))
def test_the_steps_are_what_one_decode_of_the_whole_has_more(llama: Engine, seed: int) -> None:
    """At this temperature the tokens are random: bytes, special tokens and words in any order."""
    prompt = [3, 40 + seed]
    text = llama.generate(prompt, max_new_tokens=120, temperature=1e5, seed=seed)
    said = llama.last.tokens
    said = said[:-1] if llama.last.finish_reason == "eos" else said
    before, whole = llama.tokenizer.decode(prompt), llama.tokenizer.decode([*prompt, *said])
    assert text == whole.removeprefix(before)


def test_a_transcript_keeps_the_tokens_of_an_answer_that_begins_with_a_space(llama: Engine) -> None:
    tokenizer, transcript = llama.tokenizer, Transcript(llama.pair.target)
    before, said = tokenizer.encode("word"), [tokenizer.id_of("▁Paris") or 0]
    transcript.remember(Prompt("word", raw=True), before, " Paris", said)
    assert transcript.encode(Prompt("word Paris", raw=True))[: len(before) + 1] == [*before, *said]


@pytest.mark.parametrize(("token", "reason"), [("<|im_start|>", "stop"), ("<|im_end|>", "stop")])
def test_a_special_token_may_be_a_stop_string(engine: Engine, token: str, reason: str) -> None:
    text = engine.generate("the rain", max_new_tokens=8, stop=token, logit_bias=only(engine, token))
    assert (text, len(engine.last.tokens), engine.last.finish_reason) == ("", 1, reason)


def test_a_special_token_that_is_no_stop_string_goes_on(engine: Engine) -> None:
    bias = only(engine, "<|im_start|>")
    assert engine.generate("the rain", max_new_tokens=8, stop="<|im_start|>x", logit_bias=bias) == ""
    assert (len(engine.last.tokens), engine.last.finish_reason) == (8, "length")
    twice = "<|im_start|><|im_start|>"
    engine.generate("the rain", max_new_tokens=8, stop=twice, logit_bias=bias)
    assert (len(engine.last.tokens), engine.last.finish_reason) == (2, "stop")


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ("ok\ud800", r"the prompt holds half a character at position 3"),
        (b"hi", r"bytes.*\n.*\n.*decode"),
        (bytearray(b"hi"), "bytes"),
        ([1.7, 2], r"item 0 of the prompt is 1\.7"),
        ([2, True], "item 1 of the prompt is True"),
        (["a"], "item 0 of the prompt is 'a'"),
        (np.array([1.0]), r"item 0 of the prompt is .*1\.0"),
        (np.ones((2, 2), int), "item 0 of the prompt is array"),
        (np.array([True]), "item 0"),
        (None, "the prompt is None"),
        (7, "the prompt is 7"),
        ([-1], "outside the vocabulary"),
        ([], "empty"),
    ],
)
def test_what_is_no_prompt_is_refused(engine: Engine, prompt: Any, says: str) -> None:
    with pytest.raises(SpecdecError, match=says):
        engine.generate(prompt, max_new_tokens=1)


@pytest.mark.parametrize("raw", [True, False])
def test_half_a_character_is_refused_at_every_door(engine: Engine, raw: bool) -> None:
    with pytest.raises(SpecdecError, match="half a character"):
        engine.generate("cut \udfff", raw=raw)
    with pytest.raises(SpecdecError, match="the system prompt holds half a character"):
        engine.generate("whole", system="cut \ud83d")
    with pytest.raises(SpecdecError, match=r"stop .* holds half a character"):
        engine.generate("whole", stop="\ud83d")
    with pytest.raises(SpecdecError, match="the user's message holds half a character"):
        list(engine.chat().send("\ud83d"))
    with pytest.raises(SpecdecError, match="the user's message is b'hi'"):
        list(engine.chat().send(b"hi"))  # type: ignore[arg-type]
    with pytest.raises(SpecdecError, match="half a character"):
        engine.tokenizer.encode("\ud83d")


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint16])
def test_ids_may_be_an_array(engine: Engine, kind: type) -> None:
    ids = engine.tokenizer.encode("the rain")
    told = engine.generate(ids, max_new_tokens=4)
    assert engine.generate(np.array(ids, kind), max_new_tokens=4) == told
    assert engine.generate(iter(ids), max_new_tokens=4) == told  # type: ignore[arg-type]
    assert all(type(token) is int for token in engine.last.prompt)
