"""A Hugging Face tokenizer rebuilt from what a GGUF file says of its own."""

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import AddedToken, Tokenizer, models, processors

from specdec_onnx.export.checkpoint.gguf_sentencepiece import SentencePiece
from specdec_onnx.export.checkpoint.pretokenizers import KINDS, Kind
from specdec_onnx.export.checkpoint.tokenizer_files import TokenizerFacts, write_settings
from specdec_onnx.models.errors import SpecdecError

T = TypeVar("T")
_CONTROL, _USER_DEFINED, _UNUSED = 3, 4, 5
_ROLES = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
_FURTHER_ENDS = ("eot", "eom")
_END_TEXTS = frozenset(
    f"<{name}>" for name in ("|im_end|", "|endoftext|", "|eot_id|", "|eom_id|", "|end_of_text|", "|end|")
) | {"<end_of_turn>"}


class GgufTokenizer:
    """The tokenizer in a GGUF file's metadata; SpecdecError if of unknown kind or not fitting the model."""

    def __init__(self, file: str, metadata: Mapping[str, Any], vocab_size: int) -> None:
        self.file, self.metadata = file, metadata
        byte_level = None if metadata.get("tokenizer.ggml.model") == "llama" else self._byte_level()
        self.tokens = self._list("tokens", str)
        self.types = self._list("token_type", int)
        self.merges = self._list("merges", str) if byte_level else []
        self.kind = byte_level or self._sentencepiece()
        if len(self.tokens) != len(self.types) or len(self.tokens) > vocab_size:
            sizes = f"{len(self.tokens)} tokens, {len(self.types)} types, {vocab_size} embedding rows"
            raise self._problem(f"its vocabulary does not fit: {sizes}")

    def build(self) -> Tokenizer:
        """The tokenizer, with padding entries (which no text encodes to) left out."""
        tokenizer = Tokenizer(self._model())
        tokenizer.normalizer = self.kind.normalizer()
        tokenizer.pre_tokenizer = self.kind.pre_tokenizer()
        tokenizer.decoder = self.kind.decoder()
        tokenizer.post_processor = self._post_processor()
        added = self.added()
        tokenizer.add_special_tokens([token for token in added.values() if token.special])
        tokenizer.add_tokens([token for token in added.values() if not token.special])
        return tokenizer

    def added(self) -> dict[int, AddedToken]:
        """Tokens found in text as a whole, by id: control tokens are special, user-defined ones are not."""
        if isinstance(self.kind, SentencePiece):
            return self.kind.added()
        kinds = {_CONTROL: True, _USER_DEFINED: False}
        return {
            index: AddedToken(self.tokens[index], special=kinds[kind], normalized=False)
            for index, kind in enumerate(self.types)
            if kind in kinds
        }

    def facts(self) -> TokenizerFacts:
        """What the small files beside tokenizer.json say."""
        ids = {role: self._id(key) for role, key in _ROLES.items()}
        return TokenizerFacts(
            tokenizer_class=self.kind.tokenizer_class,
            added=self.added(),
            ids={role: index for role, index in ids.items() if index is not None},
            texts={role: self.tokens[index] for role, index in ids.items() if index is not None},
            ends=self._ends(),
            adds_bos=self._adds_bos(),
            adds_space=self.kind.adds_space,
            context=self._context(),
            chat_template=str(self.metadata.get("tokenizer.chat_template") or ""),
        )

    def write(self, folder: Path) -> None:
        """Write tokenizer.json and the files beside it into an existing folder."""
        self.build().save(str(folder / "tokenizer.json"), pretty=False)
        write_settings(folder, self.facts())

    def _model(self) -> models.BPE:
        if isinstance(self.kind, SentencePiece):
            return self.kind.model()
        vocabulary: dict[str, int] = {}
        for index, token in enumerate(self.tokens):
            if self.types[index] != _UNUSED:
                vocabulary.setdefault(token, index)
        merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in self.merges)]
        for left, right in merges:
            if not (left in vocabulary and right in vocabulary and left + right in vocabulary):
                raise self._problem(f"it merges {left!r} with {right!r}, which are not all tokens")
        return models.BPE(vocabulary, merges, ignore_merges=self.kind.whole_words_first)

    def _post_processor(self) -> processors.PostProcessor | None:
        steps, bos = self.kind.post_processors(), self._id("bos")
        if self._adds_bos() and bos is not None:
            text = self.tokens[bos]
            pair = [f"{text}:0", "$A:0", f"{text}:1", "$B:1"]
            steps.append(processors.TemplateProcessing(pair[:2], pair, [(text, bos)]))
        return processors.Sequence(steps) if len(steps) > 1 else next(iter(steps), None)

    def _adds_bos(self) -> bool:
        return bool(self.metadata.get("tokenizer.ggml.add_bos_token", self.kind.adds_bos))

    def _ends(self) -> tuple[int, ...]:
        named = [self._id(key) for key in ("eos", *_FURTHER_ENDS)]
        known = [
            index for index, token in self.added().items() if token.special and token.content in _END_TEXTS
        ]
        return tuple(dict.fromkeys(index for index in [*named, *known] if index is not None))

    def _id(self, key: str) -> int | None:
        index = self.metadata.get(f"tokenizer.ggml.{key}_token_id")
        if not isinstance(index, int) or not 0 <= index < len(self.tokens):
            return None
        return index if self.types[index] != _UNUSED else None

    def _context(self) -> int | None:
        return self.metadata.get(f"{self.metadata.get('general.architecture')}.context_length")

    def _byte_level(self) -> Kind:
        model, pre = (self.metadata.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
        if model == "gpt2" and str(pre) in KINDS:
            return KINDS[str(pre)]
        why = f"its tokenizer is of kind {model!r}, pre-tokenizer {pre!r}"
        known = f"llama, and gpt2 with one of {', '.join(sorted(KINDS))}, can be rebuilt"
        raise self._problem(why, f"{known}; a safetensors folder has its own")

    def _sentencepiece(self) -> SentencePiece:
        scores = self._list("scores", float)
        if len(scores) != len(self.tokens) or not all(map(isfinite, scores)):
            raise self._problem(f"its {len(scores)} scores do not fit its {len(self.tokens)} tokens")
        for rule in ("precompiled_charsmap", "remove_extra_whitespaces"):
            if self.metadata.get(f"tokenizer.ggml.{rule}"):
                why = f"it changes text by a rule that is not understood ({rule})"
                raise self._problem(why, "give the safetensors folder, which has its own tokenizer")
        return SentencePiece.of(self.metadata, self.tokens, self.types, scores)

    def _list(self, key: str, kind: type[T]) -> list[T]:
        value = self.metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(value, list) or not value or not all(isinstance(entry, kind) for entry in value):
            raise self._problem(f"its metadata has no usable tokenizer.ggml.{key}")
        return value

    def _problem(
        self, why: str, fix: str = "convert the model again, or choose another file"
    ) -> SpecdecError:
        return SpecdecError(f"the tokenizer of {self.file} cannot be rebuilt", why, fix)
