"""Answers that follow a grammar: a JSON schema, a regular expression or a Lark grammar, checked token by token.

The grammar excludes tokens from the target's distribution before one is chosen, at every position that is verified, so
an answer is what plain decoding under the same grammar writes. The draft model chooses under the same grammar. Where
only one text can follow (a key, a quotation mark), its tokens are drafted without a pass of any model. An end-of-text
token is allowed only where the grammar may end.

llguidance keeps the parser's state, in Rust, with limits on the work for one token; it is an optional dependency
(`pip install 'specdec-onnx[grammar]'`).
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.tokenizer import Tokenizer, require_text
from specdec_onnx.runtime.sampling.sampler import History
from specdec_onnx.runtime.text.detokenizer import token_bytes

LONGEST_GRAMMAR = 1 << 18
"""Characters of a schema or grammar. Real ones have a thousand; the parser's memory grows with them."""

DEEPEST_SCHEMA = 64
"""How deep a schema may be nested: readers of JSON are recursive."""

LIMITS = {
    "max_items_in_row": 2000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
    "verbose_errors": False,
}
"""llguidance's limits: some 20 ms to read a grammar, 15 ms a token, and 100 MB of states."""

SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON on one line, as `json.dumps` writes it: a small model cannot fill its answer with blanks, and more is forced."""

_INSTALL = "install it: pip install 'specdec-onnx[grammar]'"


@dataclass(frozen=True, slots=True)
class Constraint:
    """What an answer must look like; give it to `Engine.stream` as `constraint`. It can be used any number of times.

    The rule that keeps speculation exact: which tokens are allowed depends on the answer's earlier tokens only.

    >>> colour = Constraint.regex("red|green|blue")
    """

    grammar: str
    """The grammar as llguidance reads it."""

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | str | bool) -> Self:
        """JSON, on one line, that fits a schema (a mapping, its JSON text, or True for any JSON).

        Raises SpecdecError if the schema is invalid, allows nothing, or uses a keyword that cannot be guaranteed.
        """
        text = _schema_text(schema)
        text = "{}" if text.strip() == "true" else text
        return cls._made("schema", lambda matcher: matcher.grammar_from_json_schema(text, overrides=SPACING))

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """Text that a regular expression matches as a whole; Rust's syntax, without look-around and back references.

        Raises SpecdecError if the pattern is invalid or too large.
        """
        _check_text(pattern, "regular expression")
        return cls._made("regular expression", lambda matcher: matcher.grammar_from_regex(pattern))

    @classmethod
    def lark(cls, grammar: str) -> Self:
        """Text of a context-free grammar in Lark's syntax; its first rule is `start`.

        Raises SpecdecError if the grammar is invalid or too large.
        """
        _check_text(grammar, "grammar")
        return cls._made("grammar", lambda matcher: matcher.grammar_from_lark(grammar))

    @classmethod
    def _made(cls, kind: str, make: Callable[[Any], str]) -> Self:
        matcher = _llguidance().LLMatcher
        try:
            grammar = make(matcher)
            faulty, messages = matcher.validate_grammar_with_warnings(grammar, limits=_limits())
        except ValueError as error:
            raise SpecdecError(f"the {kind} is not valid", _first_line(str(error))) from error
        if faulty:
            raise SpecdecError(f"the {kind} cannot be followed", _first_line(messages[0]))
        return cls(grammar)


def embedded(schema: Mapping[str, Any]) -> str:
    """A JSON schema as a part of a rule in a Lark grammar.

    Raises SpecdecError if it is no JSON, or nested too deeply; whether it can be followed, the whole grammar shows.
    """
    return f"%json {_schema_text({**schema, 'x-guidance': SPACING})}"


class Guide:
    """A grammar's state in one answer: which tokens may follow those pushed so far.

    `eos` are the ids that end an answer. Nothing follows them but they themselves: what is drafted or verified after
    the end is never part of an answer.
    """

    def __init__(
        self, constraint: Constraint, tokenizer: Tokenizer, vocab_size: int, eos: Sequence[int]
    ) -> None:
        self._eos = np.array([token for token in eos if token < vocab_size], np.int64)
        if not self._eos.size:
            raise SpecdecError(
                "a grammar cannot end the answer",
                "this model has no token that ends one",
                "leave out the grammar",
            )
        vocabulary = _vocabulary(tokenizer, vocab_size, tuple(self._eos.tolist()))
        self._matcher = _llguidance().LLMatcher(vocabulary, constraint.grammar, log_level=0, limits=_limits())
        self._size, self._ended = vocab_size, 0
        self.allowed()  # what no text can satisfy shows here

    @property
    def ended(self) -> bool:
        """Whether an end-of-text token was pushed."""
        return self._ended > 0

    def push(self, token: int) -> None:
        """Take one token, which must be allowed."""
        if self._ended or token in self._eos:
            self._ended += 1
        elif not self._matcher.consume_token(token):
            self._check()

    def pop(self, count: int) -> None:
        """Give back the last `count` tokens."""
        after = min(count, self._ended)
        self._ended -= after
        if count > after:
            self._matcher.rollback(count - after)
            self._check()

    def allowed(self) -> NDArray[np.bool_]:
        """Whether each token id [V] may come next; never all False."""
        if self._ended or self._matcher.is_stopped():
            self._check()
            mask = np.zeros(self._size, np.bool_)
            mask[self._eos] = True
            return mask
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        mask = np.unpackbits(bits, count=self._size, bitorder="little").view(np.bool_)
        mask[self._eos] = self._matcher.is_accepting()
        return mask

    def forced(self) -> list[int]:
        """The tokens that must come next, spelled as the tokenizer does; the target may still divide them otherwise."""
        if self._ended:
            return []
        tokens = self._kept(
            self._matcher.compute_ff_tokens() if not self._matcher.is_stopped() else [], ended=True
        )
        self._check()
        return tokens

    def keep(self, tokens: Sequence[int]) -> list[int]:
        """The first of `tokens`, up to one that is not allowed and to the end of the answer."""
        return self._kept(tokens)

    def _kept(self, tokens: Iterable[int], *, ended: bool = False) -> list[int]:
        """The tokens that are allowed one after the other; with `ended`, also the end, if nothing else can follow."""
        kept: list[int] = []
        try:
            for token in tokens:
                if self._ended or not self._allows(token):
                    break
                self.push(token)
                kept.append(token)
            stopped = ended and not self._ended and self._matcher.is_stopped()
            return [*kept, int(self._eos[0])] if stopped else kept
        finally:
            self.pop(len(kept))

    def _allows(self, token: int) -> bool:
        if token in self._eos:
            return bool(self._matcher.is_accepting())
        return bool(self._matcher.validate_tokens([token]) == 1)

    def _check(self) -> None:
        """Raise SpecdecError if the parser has given up."""
        if self._matcher.is_error():
            reason = _first_line(self._matcher.get_error())
            why = "no text can satisfy it" if reason.startswith("NoExtension") else reason
            raise SpecdecError(
                "the grammar cannot be followed", why, "correct or simplify the schema or grammar"
            )


class GuidedHistory(History):
    """A history that keeps a grammar's state in step with its tokens."""

    def __init__(self, prompt: Iterable[int], guide: Guide) -> None:
        super().__init__(prompt)
        self.guide = guide

    def push(self, token: int) -> None:
        """Append one output token."""
        super().push(token)
        assert self.guide is not None
        self.guide.push(token)

    def pop(self, count: int = 1) -> None:
        """Remove the last `count` pushed tokens."""
        super().pop(count)
        assert self.guide is not None
        self.guide.pop(count)


class _Words:
    """A tokenizer as llguidance reads it: each token's bytes, and how text is divided."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos: Sequence[int]) -> None:
        self._tokenizer, self.eos_token_id = tokenizer, eos[0]
        self.tokens = token_bytes(tokenizer)[:vocab_size]
        self.tokens += [b""] * (vocab_size - len(self.tokens))
        special = {*tokenizer.special_tokens.values(), *eos}
        self.special_token_ids = sorted(token for token in special if token < vocab_size)

    def __call__(self, text: str) -> list[int]:
        """The ids of `text` inside a longer one: many tokenizers put a blank before its beginning."""
        ids, wanted = self._tokenizer.encode(text, special=False), text.encode()
        if self._spelled(ids) == wanted:
            return ids
        ids = self._tokenizer.encode(f"\n{text}", special=False)
        for cut in range(1, len(ids)):
            if self._spelled(ids[cut:]) == wanted:
                return ids[cut:]
        return []

    def _spelled(self, ids: Iterable[int]) -> bytes:
        return b"".join(self.tokens[token] if token < len(self.tokens) else b"" for token in ids)


@lru_cache(maxsize=2)
def _vocabulary(tokenizer: Tokenizer, vocab_size: int, eos: tuple[int, ...]) -> Any:
    """llguidance's form of a tokenizer; it takes up to a second to make."""
    return _llguidance().LLTokenizer(_Words(tokenizer, vocab_size, eos), vocab_size, list(eos))


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise SpecdecError(
            "a grammar needs the package llguidance", "it is not installed", _INSTALL
        ) from error
    return llguidance


def _limits() -> Any:
    from llguidance import LLParserLimits

    return LLParserLimits(**LIMITS)


def _schema_text(schema: Mapping[str, Any] | str | bool) -> str:
    """A schema as JSON. Raises SpecdecError if it is none, too long, or nested too deeply."""
    text = schema if isinstance(schema, str) else _as_json(schema)
    _check_text(text, "schema")
    if _depth(text) > DEEPEST_SCHEMA:
        raise SpecdecError(f"the schema is nested more than {DEEPEST_SCHEMA} levels deep", fix="flatten it")
    return text


def _as_json(schema: object) -> str:
    if not isinstance(schema, (Mapping, bool)):
        raise SpecdecError(f"the schema is {schema!r:.60}", "it must be a mapping, JSON text, or True")
    try:
        return json.dumps(dict(schema) if isinstance(schema, Mapping) else schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecdecError("the schema is not JSON", str(error)) from error


def _check_text(text: str, kind: str) -> None:
    require_text(text, f"the {kind}")
    if len(text) > LONGEST_GRAMMAR:
        raise SpecdecError(f"the {kind} has {len(text)} characters", f"the limit is {LONGEST_GRAMMAR}")


def _depth(text: str) -> int:
    """How deep JSON's brackets are nested; those inside of strings do not count."""
    deepest = depth = 0
    inside = escaped = False
    for letter in text:
        if inside:
            inside = escaped or letter != '"'
            escaped = letter == "\\" and not escaped
        elif letter == '"':
            inside = True
        elif letter in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif letter in "]}":
            depth -= 1
    return deepest


def _first_line(message: str) -> str:
    return message.strip().partition("\n")[0]
