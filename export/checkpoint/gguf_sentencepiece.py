"""SentencePiece BPE from a GGUF file: pieces with scores, rarely the merges themselves."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from tokenizers import AddedToken, Regex, decoders, models, normalizers, processors

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_SPACE = "\u2581"
_NEVER_STRIP = ("<unk>", "<s>", "<|endoftext|>")
_ADDED_SCORE = -1000.0
"""The score that converters give to a token added outside the SentencePiece model."""


@dataclass(frozen=True)
class SentencePiece:
    """One vocabulary, each list by id.

    Text between two control tokens is encoded as SentencePiece encodes it alone. One exception: with
    `adds_space`, a text that is nothing but one user-defined symbol gets no space before it.
    """

    tokens: Sequence[str]
    types: Sequence[int]
    scores: Sequence[float]
    adds_space: bool
    stored_merges: Sequence[tuple[str, str]] = ()
    strips: bool = False  # white space after a control token is not text
    adds_bos: bool = True
    tokenizer_class: str = (
        "PreTrainedTokenizerFast"  # transformers' SentencePiece classes add steps of their own
    )

    @classmethod
    def of(
        cls,
        metadata: Mapping[str, Any],
        tokens: Sequence[str],
        types: Sequence[int],
        scores: Sequence[float],
        merges: Sequence[tuple[str, str]] = (),
    ) -> Self:
        """With white space before a text as the file says, or as is known for its family."""
        architecture = str(metadata.get("general.architecture"))
        gemma = architecture.startswith("gemma") or metadata.get("tokenizer.ggml.model") == "gemma4"
        adds_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", not gemma))
        return cls(tokens, types, scores, adds_space, merges, strips=architecture == "phi3")

    def model(self) -> models.BPE:
        """The BPE model; characters that it lacks are spelled in bytes if it has these."""
        vocabulary: dict[str, int] = {}
        for index, token in enumerate(self.tokens):
            if self.types[index] != _UNUSED:
                vocabulary.setdefault(token, index)
        unknown = self.types.index(_UNKNOWN) if _UNKNOWN in self.types else None
        return models.BPE(
            vocabulary,
            list(self.merges()),
            unk_token=None if unknown is None else self.tokens[unknown],
            fuse_unk=True,
            byte_fallback=_BYTE in self.types,
        )

    def merges(self) -> Iterator[tuple[str, str]]:
        """The stored ones; else every split of a piece into two, best piece first, then longest left part first.

        Only normal pieces count: SentencePiece never merges the others.
        """
        yield from self.stored_merges
        if self.stored_merges:
            return
        known = {token: index for index, token in enumerate(self.tokens) if self.types[index] == _NORMAL}
        for piece in sorted(known, key=lambda token: (-self.scores[known[token]], known[token])):
            for at in range(len(piece) - 1, 0, -1):
                if (left := piece[:at]) in known and (right := piece[at:]) in known:
                    yield left, right

    def added(self) -> dict[int, AddedToken]:
        """Tokens found in text as a whole, by id; control tokens and the unknown one are special."""
        special = {_CONTROL: True, _UNKNOWN: True, _USER_DEFINED: False}
        return {
            index: AddedToken(
                self.tokens[index],
                special=special[kind],
                normalized=index in self._inside,
                rstrip=self.strips and self.tokens[index] not in _NEVER_STRIP,
            )
            for index, kind in enumerate(self.types)
            if kind in special
        }

    def normalizer(self) -> normalizers.Normalizer:
        """Spaces become U+2581, and one more is put before the text."""
        spaces = normalizers.Replace(" ", _SPACE)
        if not self.adds_space:
            return spaces
        return normalizers.Sequence([spaces, self._prefix()])

    def pre_tokenizer(self) -> None:
        """None: SentencePiece merges across words."""

    def post_processors(self) -> list[processors.PostProcessor]:
        """None but the BOS, which the caller adds."""
        return []

    def decoder(self) -> decoders.Decoder:
        """From the spelling with U+2581 and bytes back to text."""
        steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        if self.adds_space:
            steps.append(decoders.Strip(" ", 1, 0))
        return decoders.Sequence(steps)

    def _prefix(self) -> normalizers.Normalizer:
        symbols = [self.tokens[index].replace(" ", _SPACE) for index in sorted(self._inside)]
        if not symbols:
            return normalizers.Prepend(_SPACE)
        # The library normalizes the symbols' own texts too, which must stay as they are.
        symbol = "|".join(map(re.escape, symbols))
        return normalizers.Replace(Regex(rf"\A(?!(?:{symbol})\z)(?=[\s\S])"), _SPACE)

    @cached_property
    def _inside(self) -> frozenset[int]:
        """User-defined symbols of the SentencePiece model: they are part of its text and do not divide it."""
        return frozenset(
            index
            for index, kind in enumerate(self.types)
            if kind == _USER_DEFINED and not (self.adds_space and self._is_added(index))
        )

    def _is_added(self, index: int) -> bool:
        """Whether a symbol was added outside the SentencePiece model, as all are in a model of stored merges."""
        return bool(self.stored_merges) or self.scores[index] == _ADDED_SCORE
