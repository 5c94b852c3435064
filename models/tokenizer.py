"""Text to token ids and back, exactly as the model's own files say.

Many tokenizer.json files lack control tokens that the settings beside them declare. transformers adds these when it
loads a model, and so does `Tokenizer.load`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NamedTuple, Self
from weakref import WeakValueDictionary

from specdec_onnx.models.errors import SpecdecError

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_EXTRAS = ("additional_special_tokens", "extra_special_tokens")
_Rank = Literal["all", "special", "nothing"]
_FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")
_flags_of = attrgetter(*_FLAGS)


# Loading one takes a second, and the two models of a pair mostly have the same one.
_SHARED: WeakValueDictionary[tuple[type, bytes, object], Any] = WeakValueDictionary()


class Declared(NamedTuple):
    """A token as the settings describe it; `token` is its id if they give one.

    `overrules` says which of its flags, those of _FLAGS, take precedence over tokenizer.json's for the same token.
    """

    content: str
    token: int | None
    overrules: _Rank
    flags: tuple[bool, ...]


class Tokenizer:
    """A thin, typed face over `tokenizers.Tokenizer`; safe to share between threads."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self._lock = Lock()
        # These settings serve training; a prompt is never truncated, padded or tokenized at random.
        raw.no_truncation()
        raw.no_padding()
        if getattr(raw.model, "dropout", None):
            raw.model.dropout = None

    @classmethod
    def load(cls, folder: Path, declared: Sequence[Declared] = (), limit: int | None = None) -> Self:
        """Read `folder/tokenizer.json` and add the `declared` tokens that it lacks, if their ids are below `limit`.

        Folders with the same content share one tokenizer. Raises SpecdecError when the file is missing or broken.
        """
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise SpecdecError(
                f"no tokenizer in {folder}", "tokenizer.json is missing", "export or download the model again"
            )
        content = file.read_bytes()
        digest = sha256(content).digest()
        request = cls, digest, (tuple(declared), limit)
        if (known := _SHARED.get(request)) is not None:
            return known
        raw = _read(file, content)
        missing = _missing_tokens(raw, declared, limit)
        tokenizer = _SHARED.get((cls, digest, missing))
        if tokenizer is None:
            _add_tokens(raw, missing)
            tokenizer = _SHARED[cls, digest, missing] = cls(raw)
        _SHARED[request] = tokenizer
        return tokenizer

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of `text`, without BOS or EOS; with `special=False`, the text of special tokens is plain text.

        Raises SpecdecError if `text` is not a string, or holds half a character.
        """
        require_text(text, "the text")
        return self.encoding(text, special=special).ids

    def encoding(self, text: str, *, special: bool = True) -> Any:
        """The library's own result for `encode(text)`: `ids`, and `token_to_chars(index)` for the position of each."""
        with self._lock:
            self.raw.encode_special_tokens = not special
            try:
                return self.raw.encode(text, add_special_tokens=False)
            except Exception as error:  # the library raises bare Exception
                what = "the model's tokenizer cannot read this text"
                raise SpecdecError(what, str(error), "correct its tokenizer.json") from error

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of `ids`; ids without a token (vocabulary padding) are skipped, broken UTF-8 becomes U+FFFD."""
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
    def prefix_ids(self) -> tuple[int, ...]:
        """Ids that the model's own post-processor puts before any text (its BOS, usually)."""
        with self._lock:
            alone: list[int] = self.raw.encode("", add_special_tokens=True).ids
            around: list[int] = self.raw.encode("a", add_special_tokens=True).ids
        same = [a == b for a, b in zip(alone, around, strict=False)]
        return tuple(alone[: same.index(False)] if False in same else alone)


def require_text(text: object, what: str) -> None:
    """Raise SpecdecError if `text` is not a string, or holds half a character (a lone surrogate)."""
    if not isinstance(text, str):
        raise SpecdecError(f"{what} is {text!r:.60}", "it must be text (str)")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SpecdecError(
            f"{what} holds half a character at position {error.start + 1}",
            f"{text[error.start]!a} is a surrogate without its other half",
            "decode the text as UTF-8, or cut it between characters",
        ) from error


def merged_settings(config: Mapping[str, Any], roles: Mapping[str, Any]) -> Mapping[str, Any]:
    """tokenizer_config.json with what special_tokens_map.json adds; in the older form, the latter takes precedence."""
    named = {key: value for key, value in roles.items() if key in (*ROLES, *_EXTRAS) and value is not None}
    return {**named, **config} if "added_tokens_decoder" in config else {**config, **named}


def role_text(settings: Mapping[str, Any], role: str) -> str | None:
    """The text of the token that has a role such as "eos_token", None if there is none."""
    value = settings.get(role)
    return _content(value, role) if value else None


def declared_tokens(settings: Mapping[str, Any], older: Mapping[str, Any]) -> tuple[Declared, ...]:
    """All tokens that merged `settings` declare, by id, then by role; `older` is the content of added_tokens.json."""
    roles = {_content(value, role): value for role, value in _roles(settings)}
    entries: Any = settings.get("added_tokens_decoder")
    older_form = entries is None
    if older_form:
        entries = {str(token): text for text, token in older.items()}
    ranks: tuple[_Rank, _Rank] = ("special", "special") if older_form else ("all", "nothing")
    listed = [_declared(entry, token, ranks[0], roles) for token, entry in _entries(entries)]
    known = {entry.content for entry in listed}
    named = [_declared(value, None, ranks[1], roles) for text, value in roles.items() if text not in known]
    return (*sorted(listed, key=lambda entry: entry.token or 0), *named)


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


def _missing_tokens(raw: Any, declared: Sequence[Declared], limit: int | None) -> tuple[Declared, ...]:
    """The declared tokens that the tokenizer lacks or describes differently, with ids that a model of `limit` ids has.

    Raises SpecdecError for a token that could not get its id.
    """
    added = raw.get_added_tokens_decoder()
    known = {entry.content: entry for entry in added.values()}
    free = max(raw.get_vocab_size(with_added_tokens=False), max(added, default=-1) + 1)
    missing = []
    for entry in declared:
        now = known.get(entry.content)
        if now is not None:
            entry = _overruling(entry, _flags_of(now))
            wanted = entry.flags != _flags_of(now)
        elif raw.token_to_id(entry.content) is not None:
            wanted = True
        elif wanted := limit is None or max(free, entry.token or 0) < limit:
            free = _next(raw, entry, free)
        if wanted:
            missing.append(entry)
    return tuple(missing)


def _add_tokens(raw: Any, declared: Sequence[Declared]) -> None:
    """Make `declared` tokens of the tokenizer; those in its vocabulary keep their ids."""
    from tokenizers import AddedToken

    flags = [dict(zip(_FLAGS, entry.flags, strict=True)) for entry in declared]
    raw.add_tokens([AddedToken(entry.content, **each) for entry, each in zip(declared, flags, strict=True)])


def _overruling(entry: Declared, now: tuple[bool, ...]) -> Declared:
    """The token as declared and as tokenizer.json describes it (`now`); the library cannot make one not special."""
    special = now[0] or (entry.flags[0] and entry.overrules != "nothing")
    others = entry.flags[1:] if entry.overrules == "all" else now[1:]
    return entry._replace(flags=(special, *others))


def _next(raw: Any, entry: Declared, free: int) -> int:
    """The next free id once `entry` has this one."""
    if entry.token not in (None, free) or raw.id_to_token(free) is not None:
        raise SpecdecError(
            f"tokenizer.json lacks the token {entry.content}",
            f"the other files give it the id {entry.token}, but the next free id is {free}",
            "download the model again, with all its tokenizer files",
        )
    return free + 1


def _roles(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((role, settings[role]) for role in ROLES if settings.get(role))
    for key in _EXTRAS:
        extras = settings.get(key) or []
        if not isinstance(extras, (list, Mapping)):
            raise _faulty(key, extras)
        values = extras.values() if isinstance(extras, Mapping) else extras
        yield from ((key, value) for value in values if value)


def _entries(listed: Any) -> Iterator[tuple[int, Any]]:
    if not isinstance(listed, Mapping):
        raise _faulty("added_tokens_decoder", listed)
    for token, entry in listed.items():
        if not token.isdecimal():
            raise _faulty("added_tokens_decoder", {token: entry})
        yield int(token), entry


def _declared(value: Any, token: int | None, overrules: _Rank, roles: Mapping[str, Any]) -> Declared:
    flags = value if isinstance(value, Mapping) else {}
    text = _content(value, "added_tokens_decoder")
    special = text in roles or bool(flags.get("special"))
    normalized = bool(flags.get("normalized", not special))
    return Declared(
        text, token, overrules, (special, *(bool(flags.get(flag)) for flag in _FLAGS[1:4]), normalized)
    )


def _content(value: Any, where: str) -> str:
    text = value.get("content") if isinstance(value, Mapping) else value
    if not isinstance(text, str) or not text:
        raise _faulty(where, value)
    return text


def _faulty(where: str, value: Any) -> SpecdecError:
    return SpecdecError(
        f"the tokenizer's settings say {where}: {value!r}", "it must be a token", "download the model again"
    )
