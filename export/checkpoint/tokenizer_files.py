"""The small files beside tokenizer.json, written from what is known of a tokenizer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken


@dataclass(frozen=True)
class TokenizerFacts:
    """What a source says of its tokenizer; `ids` and `texts` are by role: bos, eos, pad, unk."""

    tokenizer_class: str
    added: Mapping[int, AddedToken]
    ids: Mapping[str, int]
    texts: Mapping[str, str]
    ends: tuple[int, ...]
    adds_bos: bool
    adds_space: bool
    context: int | None
    chat_template: str


def write_settings(folder: Path, facts: TokenizerFacts) -> None:
    """Write tokenizer_config, special_tokens_map and generation_config (JSON), and chat_template.jinja."""
    roles = {f"{role}_token": text for role, text in facts.texts.items()}
    _write(folder / "tokenizer_config.json", tokenizer_config(facts))
    _write(folder / "special_tokens_map.json", roles)
    _write(folder / "generation_config.json", generation_config(facts))
    if facts.chat_template:
        (folder / "chat_template.jinja").write_text(facts.chat_template, encoding="utf-8", newline="")


def tokenizer_config(facts: TokenizerFacts) -> dict[str, Any]:
    """Settings as transformers reads them; the chat template has its own file."""
    roles = {f"{role}_token": facts.texts.get(role) for role in ("bos", "eos", "pad", "unk")}
    return {
        "add_bos_token": facts.adds_bos,
        "add_prefix_space": facts.adds_space,
        "added_tokens_decoder": {str(index): _described(token) for index, token in facts.added.items()},
        **roles,
        "clean_up_tokenization_spaces": False,
        "errors": "replace",
        "model_max_length": facts.context,
        "split_special_tokens": False,
        "tokenizer_class": facts.tokenizer_class,
    }


def generation_config(facts: TokenizerFacts) -> dict[str, Any]:
    """Where generation starts and ends; `eos_token_id` lists every token that ends a turn."""
    ids = {f"{role}_token_id": facts.ids[role] for role in ("bos", "pad") if role in facts.ids}
    return ids | ({"eos_token_id": list(facts.ends)} if facts.ends else {})


def _described(token: AddedToken) -> dict[str, Any]:
    fields = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    return {field: getattr(token, field) for field in fields}


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="")
