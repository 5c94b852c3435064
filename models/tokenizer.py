"""Text to token ids and back, exactly as the model's own tokenizer.json says."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, Self
from weakref import WeakValueDictionary

from specdec_onnx.models.added_tokens import Declared, add_tokens, missing_tokens
from specdec_onnx.models.errors import SpecdecError

# Reading one takes a second, and a pair has two that are mostly the same.
_SHARED: WeakValueDictionary[tuple[type, bytes, object], Any] = WeakValueDictionary()


class Tokenizer:
    """A thin, typed face over `tokenizers.Tokenizer`; safe to share between threads."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self._lock = Lock()
        # These serve training on batches: a prompt is neither cut nor filled up, and its tokens aren't drawn.
        raw.no_truncation()
        raw.no_padding()
        if getattr(raw.model, "dropout", None):
            raw.model.dropout = None

    @classmethod
    def load(cls, folder: Path, declared: Sequence[Declared] = (), limit: int | None = None) -> Self:
        """Read `folder/tokenizer.json` and add the `declared` tokens that it lacks, of ids below `limit`.

        One of the same content is shared. Raises SpecdecError when the file is missing or broken.
        """
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise SpecdecError(
                f"no tokenizer in {folder}", "tokenizer.json is missing", "export or download the model again"
            )
        content = file.read_bytes()
        digest = sha256(content).digest()
        asked = cls, digest, (tuple(declared), limit)
        if (known := _SHARED.get(asked)) is not None:
            return known
        raw = _read(file, content)
        missing = missing_tokens(raw, declared, limit)
        made = _SHARED.get((cls, digest, missing))
        if made is None:
            add_tokens(raw, missing)
            made = _SHARED[cls, digest, missing] = cls(raw)
        _SHARED[asked] = made
        return made

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of `text`, with no BOS or EOS added; `special=False` reads special-token text as plain text.

        Raises SpecdecError for what is no text, and for half a character.
        """
        require_text(text, "the text")
        with self._lock:
            self.raw.encode_special_tokens = not special
            return self.raw.encode(text, add_special_tokens=False).ids

    def encoding(self, text: str) -> Any:
        """The library's own result for `encode(text)`: `ids`, and `token_to_chars(index)` for each one's place."""
        with self._lock:
            self.raw.encode_special_tokens = False
            return self.raw.encode(text, add_special_tokens=False)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of `ids`; ids without a token (vocabulary padding) are silent, broken UTF-8 becomes U+FFFD."""
        return self.raw.decode([int(i) for i in ids], skip_special_tokens=skip_special)

    def id_of(self, text: str) -> int | None:
        """Id of the token spelled `text` in the vocabulary (special tokens: their own text)."""
        return self.raw.token_to_id(text)

    def token_text(self, token: int) -> str:
        """Readable text of one id, special tokens included; "" for an id without a token."""
        return self.raw.decode([int(token)], skip_special_tokens=False)

    def spelling(self, token: int) -> str:
        """The vocabulary's spelling of one id; "" for an id without a token."""
        return (self.spellings[token] if token < self.size else None) or ""

    @cached_property
    def decoder(self) -> tuple[Mapping[str, Any], ...]:
        """The steps that decoding takes, as tokenizer.json describes them."""
        decoder = self.raw.decoder
        return () if decoder is None else tuple(_steps(json.loads(decoder.__getstate__())))

    @cached_property
    def spellings(self) -> list[str | None]:
        """The vocabulary's spelling of each id [size]; None where an id has no token."""
        dense = list(map(self.raw.id_to_token, range(self.raw.get_vocab_size(with_added_tokens=True))))
        if None not in dense:
            return dense
        highest = max(self.raw.get_vocab(with_added_tokens=True).values())
        return list(map(self.raw.id_to_token, range(highest + 1)))

    @property
    def size(self) -> int:
        """1 + the highest id that has a token: logits from here on belong to padding."""
        return len(self.spellings)

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Text and id of the tokens marked special (control tokens that decode() leaves out)."""
        added = self.raw.get_added_tokens_decoder()
        return {entry.content: token for token, entry in added.items() if entry.special}

    @property
    def added_ids(self) -> list[int]:
        """Ids of the tokens that were added to the vocabulary: the special and control ones."""
        return sorted(self.raw.get_added_tokens_decoder())

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of the tokens marked special."""
        return frozenset(self.special_tokens.values())

    @cached_property
    def prefix_ids(self) -> tuple[int, ...]:
        """Ids that the model's own post-processor puts before any text (its BOS, usually)."""
        with self._lock:
            alone: list[int] = self.raw.encode("", add_special_tokens=True).ids
            around: list[int] = self.raw.encode("a", add_special_tokens=True).ids
        same = [a == b for a, b in zip(alone, around, strict=False)]
        return tuple(alone[: same.index(False)] if False in same else alone)


def require_text(text: object, what: str) -> None:
    """Refuse (SpecdecError) what isn't a text, and a text with half a character (a lone surrogate)."""
    if not isinstance(text, str):
        raise SpecdecError(f"{what} is {text!r:.60}", "it must be a text (str)")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SpecdecError(
            f"{what} holds half a character at position {error.start + 1}",
            f"{text[error.start]!a} is a surrogate without its other half",
            "decode the text as UTF-8, or cut it between characters",
        ) from error


def _read(file: Path, content: bytes) -> Any:
    from tokenizers import Tokenizer as Raw

    try:
        return Raw.from_buffer(content)
    except Exception as error:  # the library raises bare Exception
        raise SpecdecError(f"{file} is not a tokenizer", str(error), "export the model again") from error


def _steps(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if decoder["type"] != "Sequence":
        yield decoder
        return
    for step in decoder["decoders"]:
        yield from _steps(step)
