"""A small real byte-level BPE tokenizer of any size, with a chat template and three special tokens at its end."""

import itertools
import json
from functools import lru_cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_LETTERS = "etaoinshrdlucmfwypvbgkjqxz"


@lru_cache
def tiny_tokenizer(size: int) -> Tokenizer:
    """`size` tokens: 256 bytes, merges of common letters, and SPECIAL as the last three."""
    plain = size - len(SPECIAL)
    vocabulary = {symbol: index for index, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    if plain < len(vocabulary):
        raise ValueError(
            f"a byte-level tokenizer has at least {len(vocabulary) + len(SPECIAL)} tokens, not {size}"
        )
    merges = list(itertools.islice(_merges(), plain - len(vocabulary)))
    vocabulary |= {left + right: len(vocabulary) + index for index, (left, right) in enumerate(merges)}
    if len(vocabulary) != plain:
        raise ValueError(f"no tiny tokenizer of {size} tokens")
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return tokenizer


def write_tokenizer(folder: Path, size: int) -> None:
    """tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json of a tiny chat model."""
    end, _, turn = range(size - 3, size)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer.json").write_text(tiny_tokenizer(size).to_str(), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    generation = {"bos_token_id": end, "eos_token_id": [turn, end], "pad_token_id": end}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2), encoding="utf-8")


def _merges() -> "itertools.chain[tuple[str, str]]":
    """Pairs in the order a small English text would suggest: two letters, a space and a letter, then three letters."""
    pairs = itertools.product(_LETTERS, _LETTERS)
    spaced = (("Ġ", letter) for letter in _LETTERS)
    triples = (
        (first + second, third) for first, second, third in itertools.product(_LETTERS, _LETTERS, _LETTERS)
    )
    return itertools.chain(spaced, pairs, triples)
