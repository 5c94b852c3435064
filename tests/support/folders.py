"""Tiny tokenizers and model folders, made on the spot; the graphs in them are placeholders, never run."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_level_tokenizer(words: Sequence[str] = (), special: Sequence[str] = SPECIAL) -> Tokenizer:
    """A byte-level BPE tokenizer: 256 bytes, then the pieces each word is merged from, then the special tokens."""
    pieces, merges = sorted(pre_tokenizers.ByteLevel.alphabet()), []
    for word in words:
        for end in range(2, len(word) + 1):
            if word[:end] not in pieces:
                pieces.append(word[:end])
                merges.append((word[: end - 1], word[end - 1]))
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return tokenizer


def write_json(file: Path, content: Any) -> None:
    """Write `content` as JSON, parents included."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")


def write_model_folder(
    path: Path, tokenizer: Tokenizer | None = None, *, graph: str = "onnx/model.onnx", **config: Any
) -> Path:
    """A folder in our layout with a placeholder graph; keyword arguments go into config.json."""
    tokenizer = tokenizer or byte_level_tokenizer()
    base = {"model_type": "qwen2", "vocab_size": 320, "max_position_embeddings": 128, "eos_token_id": 258}
    write_json(path / "config.json", base | config)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / graph).parent.mkdir(parents=True, exist_ok=True)
    (path / graph).write_bytes(b"placeholder")
    return path
