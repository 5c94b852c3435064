"""SentencePiece BPE from what a GGUF file holds of it: pieces with scores, seldom the merges themselves."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from tokenizers import AddedToken, Regex, decoders, models, normalizers, processors

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_SPACE = "\u2581"
_NEVER_STRIP = ("<unk>", "<s>", "<|endoftext|>")
_BESIDE = -1000.0
"""The score that converters give a token that was added beside the SentencePiece model."""


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
    strips: bool = False  # what white space follows a control token is no text
    adds_bos: bool = True
    tokenizer_class: str = "PreTrainedTokenizerFast"  # transformers' own classes for it add steps of theirs

    @classmethod
    def of(
        cls,
        metadata: Mapping[str, Any],
        tokens: Sequence[str],
        types: Sequence[int],
        scores: Sequence[float],
        merges: Sequence[tuple[str, str]] = (),
    ) -> Self:
        """With what a file says, or its family is known for, of white space before a text."""
        architecture = str(metadata.get("general.architecture"))
        gemma = architecture.startswith("gemma") or metadata.get("tokenizer.ggml.model") == "gemma4"
        adds_space = bool(metadata.get("tokenizer.ggml.add_space_prefix", not gemma))
        return cls(tokens, types, scores, adds_space, merges, strips=architecture == "phi3")

    def model(self) -> models.BPE:
        """The BPE model, with bytes for what the vocabulary lacks if it has them."""
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
        """Those stored; else every split of a piece into two, best piece first; of one piece, the longest left part first.

        Only normal pieces count: SentencePiece merges neither from nor to the others.
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
        """Spaces become U+2581, one more goes before the text."""
        spaces = normalizers.Replace(" ", _SPACE)
        if not self.adds_space:
            return spaces
        return normalizers.Sequence([spaces, self._prefix()])

    def pre_tokenizer(self) -> None:
        """None: SentencePiece merges across words."""

    def post_processors(self) -> list[processors.PostProcessor]:
        """Nothing, before a BOS is put first."""
        return []

    def decoder(self) -> decoders.Decoder:
        """Out of the spelling with U+2581 and bytes."""
        steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        if self.adds_space:
            steps.append(decoders.Strip(" ", 1, 0))
        return decoders.Sequence(steps)

    def _prefix(self) -> normalizers.Normalizer:
        symbols = [self.tokens[index].replace(" ", _SPACE) for index in sorted(self._inside)]
        if not symbols:
            return normalizers.Prepend(_SPACE)
        # The library sends the symbols' own texts through here too, and must find them as they are.
        symbol = "|".join(map(re.escape, symbols))
        return normalizers.Replace(Regex(rf"\A(?!(?:{symbol})\z)(?=[\s\S])"), _SPACE)

    @cached_property
    def _inside(self) -> frozenset[int]:
        """User-defined symbols of the SentencePiece model: they stand in its text, and do not divide it."""
        return frozenset(
            index
            for index, kind in enumerate(self.types)
            if kind == _USER_DEFINED and not (self.adds_space and self._beside(index))
        )

    def _beside(self, index: int) -> bool:
        """Whether a symbol was added beside the SentencePiece model; a model of stored merges has none inside."""
        return bool(self.stored_merges) or self.scores[index] == _BESIDE
