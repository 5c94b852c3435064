"""Rendered conversations against transformers' own `apply_chat_template`, where that is installed."""

from pathlib import Path
from typing import Any

import pytest
from support.chat_templates import DEAF_TO_SYSTEM, KINDS, RICH, WITHOUT_SYSTEM
from support.folders import write_json, write_model_folder
from support.tiny_tokenizer import SPECIAL, tiny_tokenizer

from specdec_onnx.models.folder import open_model
from specdec_onnx.runtime.text.prompt import chat_prompt, encode

transformers = pytest.importorskip("transformers")

SETTINGS = {"eos_token": SPECIAL[2], "pad_token": SPECIAL[0]}
TEMPLATES = {name: kind.source for name, kind in KINDS.items()} | RICH
TALKS = {
    "one question": [("user", 'What is é<b>&\' "here"?')],
    "system": [
        ("system", "Be brief.\n"),
        ("user", " hello  "),
        ("assistant", "Hi!\n\n"),
        ("user", "a\n\nb\n"),
    ],
    "two turns": [("user", "one"), ("assistant", "aa bb. 漢字 🙂"), ("user", "x/quietx what?")],
    "thinking": [("user", "12"), ("assistant", "<think>\nhm\n</think>\n\nThen"), ("user", "and</think> so")],
    "answered": [
        ("system", "S"),
        ("user", "Q"),
        ("assistant", "An answer\nof two lines"),
        ("user", "."),
        ("assistant", "B"),
    ],
}


@pytest.mark.parametrize("ending", [True, False], ids=["to be answered", "as it stands"])
@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_write_what_transformers_writes(name: str, talk: str, ending: bool, tmp_path: Path) -> None:
    compare(tmp_path, TEMPLATES[name], TALKS[talk], ending)


@pytest.mark.parametrize("ending", [True, False])
@pytest.mark.parametrize("template", [WITHOUT_SYSTEM, DEAF_TO_SYSTEM])
def test_conversations_that_a_template_takes_are_not_changed(
    template: str, ending: bool, tmp_path: Path
) -> None:
    compare(tmp_path, template, TALKS["two turns"], ending)


def compare(folder: Path, template: str, talk: list[tuple[str, str]], ending: bool) -> None:
    tokenizer = tiny_tokenizer(384)
    write_json(write_model_folder(folder, tokenizer, vocab_size=384) / "tokenizer_config.json", SETTINGS)
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8", newline="")
    messages = [{"role": role, "content": content} for role, content in talk]
    theirs: Any = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SETTINGS)
    model = open_model(folder)
    prompt = chat_prompt(model, messages, open_answer=ending)
    ask = {"chat_template": template, "add_generation_prompt": ending}
    assert prompt.text == theirs.apply_chat_template(messages, tokenize=False, **ask)
    assert encode(model, prompt) == theirs.apply_chat_template(messages, **ask)["input_ids"]
