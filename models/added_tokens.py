"""Tokens that a model's settings declare beside tokenizer.json: control tokens, and how they are found in a text.

Many tokenizer.json files lack them; transformers then adds them when it loads the model, and so do we.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from specdec_onnx.models.errors import SpecdecError

ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
EXTRAS = ("additional_special_tokens", "extra_special_tokens")
Rank = Literal["all", "special", "nothing"]
_FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")


class Declared(NamedTuple):
    """A token as the settings describe it; `token` is its id if they name one.

    `overrules` says what of it counts more than tokenizer.json's word on the same token.
    """

    content: str
    token: int | None
    overrules: Rank
    special: bool
    lstrip: bool
    rstrip: bool
    single_word: bool
    normalized: bool


def merged_settings(config: Mapping[str, Any], roles: Mapping[str, Any]) -> Mapping[str, Any]:
    """tokenizer_config.json with what special_tokens_map.json adds; the older form of the first lets the second win."""
    said = {key: value for key, value in roles.items() if key in (*ROLES, *EXTRAS) and value is not None}
    return {**said, **config} if "added_tokens_decoder" in config else {**config, **said}


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
    ranks: tuple[Rank, Rank] = ("special", "special") if older_form else ("all", "nothing")
    listed = [_declared(entry, token, ranks[0], roles) for token, entry in _entries(entries)]
    known = {entry.content for entry in listed}
    named = [_declared(value, None, ranks[1], roles) for text, value in roles.items() if text not in known]
    return (*sorted(listed, key=lambda entry: entry.token or 0), *named)


def missing_tokens(raw: Any, declared: Sequence[Declared], limit: int | None) -> tuple[Declared, ...]:
    """Those that the tokenizer lacks or describes otherwise, and that a model of `limit` ids can mean something by.

    Raises SpecdecError for one whose id it could not get.
    """
    added = raw.get_added_tokens_decoder()
    known = {entry.content: entry for entry in added.values()}
    free = max(raw.get_vocab_size(with_added_tokens=False), max(added, default=-1) + 1)
    missing = []
    for entry in declared:
        now = known.get(entry.content)
        if now is not None:
            entry = _overruling(entry, now)
            wanted = any(getattr(now, flag) != getattr(entry, flag) for flag in _FLAGS)
        elif raw.token_to_id(entry.content) is not None:
            wanted = True
        elif wanted := limit is None or max(free, entry.token or 0) < limit:
            free = _next(raw, entry, free)
        if wanted:
            missing.append(entry)
    return tuple(missing)


def add_tokens(raw: Any, declared: Sequence[Declared]) -> None:
    """Make `declared` tokens of the tokenizer; those in its vocabulary keep their ids."""
    from tokenizers import AddedToken

    raw.add_tokens(
        [AddedToken(entry.content, **{flag: getattr(entry, flag) for flag in _FLAGS}) for entry in declared]
    )


def _overruling(entry: Declared, now: Any) -> Declared:
    """What becomes of a token that tokenizer.json describes as `now`; special it stays, the library can't take that back."""
    special = now.special or (entry.special and entry.overrules != "nothing")
    if entry.overrules == "all":
        return entry._replace(special=special)
    return entry._replace(**{flag: getattr(now, flag) for flag in _FLAGS} | {"special": special})


def _next(raw: Any, entry: Declared, free: int) -> int:
    """The next free id once `entry` has this one."""
    if entry.token not in (None, free) or raw.id_to_token(free) is not None:
        raise SpecdecError(
            f"tokenizer.json lacks the token {entry.content}",
            f"the other files give it the id {entry.token}, the vocabulary's next one is {free}",
            "download the model again, with its whole tokenizer",
        )
    return free + 1


def _roles(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((role, settings[role]) for role in ROLES if settings.get(role))
    for key in EXTRAS:
        extras = settings.get(key) or []
        if not isinstance(extras, (list, Mapping)):
            raise _faulty(key, extras)
        yield from (
            (key, value) for value in (extras.values() if isinstance(extras, Mapping) else extras) if value
        )


def _entries(listed: Any) -> Iterator[tuple[int, Any]]:
    if not isinstance(listed, Mapping):
        raise _faulty("added_tokens_decoder", listed)
    for token, entry in listed.items():
        if not token.isdecimal():
            raise _faulty("added_tokens_decoder", {token: entry})
        yield int(token), entry


def _declared(value: Any, token: int | None, overrules: Rank, roles: Mapping[str, Any]) -> Declared:
    said = value if isinstance(value, Mapping) else {}
    text = _content(value, "added_tokens_decoder")
    special = text in roles or bool(said.get("special"))
    normalized = bool(said.get("normalized", not special))
    lstrip, rstrip, word = (bool(said.get(flag)) for flag in ("lstrip", "rstrip", "single_word"))
    return Declared(text, token, overrules, special, lstrip, rstrip, word, normalized)


def _content(value: Any, where: str) -> str:
    text = value.get("content") if isinstance(value, Mapping) else value
    if not isinstance(text, str) or not text:
        raise _faulty(where, value)
    return text


def _faulty(where: str, value: Any) -> SpecdecError:
    return SpecdecError(
        f"the tokenizer's settings say {where}: {value!r}", "it must be a token", "download the model again"
    )
