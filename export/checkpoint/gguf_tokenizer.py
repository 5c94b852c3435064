"""A Hugging Face tokenizer rebuilt from a GGUF file's metadata."""

import re
from collections.abc import Mapping
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from tokenizers import AddedToken, Tokenizer, models, processors

from specdec_onnx.export.checkpoint.gguf_sentencepiece import SentencePiece
from specdec_onnx.export.checkpoint.pretokenizers import ALIASES, DEFAULT, KINDS, Kind, kind_of
from specdec_onnx.export.staging import write_json
from specdec_onnx.models.errors import SpecdecError

T = TypeVar("T")

_NO_PRE_TOKENIZER = (
    "the GGUF file names no pre-tokenizer: llama.cpp's default is used, and the quality of answers may degrade; "
    "a file converted with a current llama.cpp names it"
)
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = range(1, 6)
_ROLES = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
_SENTENCEPIECE_IDS = {"unknown": 0, "bos": 1, "eos": 2}
"""SentencePiece's own, for files that name none."""
_FURTHER_ENDS = ("eot", "eom")
_TOKEN_FIELDS = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
_ALWAYS_END = frozenset(
    {f"<|{name}|>" for name in ("im_end", "endoftext", "eot_id", "eom_id", "end_of_text", "end")}
    | {"<end_of_turn>", "<end_of_utterance>", "<turn|>", "<|tool_response>"}
    | {"<EOT>", "_<EOT>", "[EOT]", "<\uff5cend\u2581of\u2581sentence\uff5c>"}
)
_END_IF_CONTROL = frozenset({"</s>", "<eos>", "[EOS]"})
"""In some vocabularies these are ordinary text, such as HTML."""
_END_TEXTS = _ALWAYS_END | _END_IF_CONTROL
_CONTROL_TEXTS = _ALWAYS_END | {"<start_of_turn>", "<|turn>"}
_NAMED = re.compile(r"<\S+>|\[\S+\]")
_WITH_MERGES = ("gpt2", "gemma4")
_LOOKS_LIKE_CONTROL = re.compile(r"<\|[^\s|]+\|>|<\uff5c[^\s\uff5c]+\uff5c>")


class GgufTokenizer:
    """The tokenizer in a GGUF file's metadata; `notes` are what a user should know about it.

    SpecdecError if its kind is unknown or it does not fit the model.
    """

    def __init__(self, file: str, metadata: Mapping[str, Any], vocab_size: int) -> None:
        self.file, self.metadata = file, metadata
        byte_level = self._byte_level()
        self.tokens = self._list("tokens", str)
        self.types = self._list("token_type", int)
        if len(self.tokens) != len(self.types) or len(self.tokens) > vocab_size:
            sizes = f"{len(self.tokens)} tokens, {len(self.types)} types, {vocab_size} embedding rows"
            raise self._problem(f"its vocabulary does not match: {sizes}")
        self.merges = self._merges() if self._metadata("model") in _WITH_MERGES else []
        self.types = self._corrected_types()
        self.kind = byte_level or self._sentencepiece()
        self.notes = (_NO_PRE_TOKENIZER,) if self.kind is KINDS[DEFAULT] and not self._metadata("pre") else ()

    def build(self) -> Tokenizer:
        """The tokenizer, without padding entries, to which no text is encoded."""
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

    def write(self, folder: Path) -> None:
        """Write tokenizer.json and the files beside it into an existing folder."""
        self.build().save(str(folder / "tokenizer.json"), pretty=False)
        texts = {f"{role}_token": self.tokens[index] for role, index in self.ids.items()}
        write_json(folder / "tokenizer_config.json", self._settings(texts))
        write_json(folder / "special_tokens_map.json", texts)
        ids = {f"{role}_token_id": self.ids[role] for role in ("bos", "pad") if role in self.ids}
        ends = {"eos_token_id": list(self.ends)} if self.ends else {}
        write_json(folder / "generation_config.json", ids | ends)
        if template := str(self.metadata.get("tokenizer.chat_template") or ""):
            (folder / "chat_template.jinja").write_text(template, encoding="utf-8", newline="")

    @cached_property
    def ids(self) -> dict[str, int]:
        """Special tokens by role, as far as there are any: bos, eos, pad, unk."""
        ids = {role: self._id(key) for role, key in _ROLES.items()}
        return {role: index for role, index in ids.items() if index is not None}

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Every token that ends a turn."""
        named = [self._id(key) for key in ("eos", *_FURTHER_ENDS)]
        known = [index for index, token in enumerate(self.tokens) if token in _END_TEXTS]
        control = [index for index in known if self.types[index] == _CONTROL]
        return tuple(dict.fromkeys(index for index in [*named, *control] if index is not None))

    @property
    def adds_bos(self) -> bool:
        """Whether texts start with BOS."""
        return bool(self.metadata.get("tokenizer.ggml.add_bos_token", self.kind.adds_bos))

    def _settings(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """tokenizer_config.json as transformers has it; the chat template has its own file."""
        return {
            "add_bos_token": self.adds_bos,
            "add_prefix_space": self.kind.adds_space,
            "added_tokens_decoder": {
                str(index): {field: getattr(token, field) for field in _TOKEN_FIELDS}
                for index, token in self.added().items()
            },
            **{f"{role}_token": texts.get(f"{role}_token") for role in _ROLES},
            "clean_up_tokenization_spaces": False,
            "errors": "replace",
            "model_max_length": self.metadata.get(
                f"{self.metadata.get('general.architecture')}.context_length"
            ),
            "split_special_tokens": False,
            "tokenizer_class": self.kind.tokenizer_class,
        }

    def _model(self) -> models.BPE:
        if isinstance(self.kind, SentencePiece):
            return self.kind.model()
        vocabulary: dict[str, int] = {}
        for index, token in enumerate(self.tokens):
            if self.types[index] != _UNUSED:
                vocabulary.setdefault(token, index)
        return models.BPE(vocabulary, self.merges, ignore_merges=self.kind.whole_words_first)

    def _merges(self) -> list[tuple[str, str]]:
        # The separator is not the first space if a token starts with one.
        stored = ((merge, merge.find(" ", 1)) for merge in self._list("merges", str))
        merges = [(merge[:at], merge[at + 1 :]) for merge, at in stored]
        known = {token for token, kind in zip(self.tokens, self.types, strict=True) if kind != _UNUSED}
        for left, right in merges:
            if not (left in known and right in known and left + right in known):
                raise self._problem(f"it merges {left!r} with {right!r}, which are not all tokens")
        return merges

    def _corrected_types(self) -> list[int]:
        """The stored types, except that tokens spelled or named like control tokens are ones.

        Converters have stored such tokens as normal or user-defined ones. A token that results from merges is text.
        """
        merged = {left + right for left, right in self.merges}
        named = {self._id(key) for key in ("bos", "eos", *_FURTHER_ENDS)}

        def is_control(index: int, token: str) -> bool:
            return token in _CONTROL_TEXTS or bool(
                (_NAMED if index in named else _LOOKS_LIKE_CONTROL).fullmatch(token)
            )

        return [
            _CONTROL
            if kind in (_NORMAL, _USER_DEFINED) and token not in merged and is_control(i, token)
            else kind
            for i, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
        ]

    def _post_processor(self) -> processors.PostProcessor | None:
        steps, bos = self.kind.post_processors(), self._id("bos")
        if self.adds_bos and bos is not None:
            text = self.tokens[bos]
            pair = [f"{text}:0", "$A:0", f"{text}:1", "$B:1"]
            steps.append(processors.TemplateProcessing(pair[:2], pair, [(text, bos)]))
        return processors.Sequence(steps) if len(steps) > 1 else next(iter(steps), None)

    def _id(self, key: str) -> int | None:
        index = self._metadata(f"{key}_token_id")
        if isinstance(index, int) and 0 <= index < len(self.tokens):
            return index if self.types[index] != _UNUSED else None
        default = _SENTENCEPIECE_IDS.get(key) if self._metadata("model") == "llama" else None
        if default is None or default >= len(self.types):
            return None
        return default if self.types[default] in (_CONTROL, _UNKNOWN) else None

    def _byte_level(self) -> Kind | None:
        """The kind of byte-level BPE; None for SentencePiece."""
        model, pre = self._metadata("model"), self._metadata("pre")
        if model in ("llama", "gemma4"):
            return None
        if model == "gpt2" and (kind := kind_of(pre)):
            return kind
        why = f"its tokenizer is of kind {model!r}, pre-tokenizer {pre!r}"
        known = f"llama, gemma4, and gpt2 with one of {', '.join(sorted(KINDS | ALIASES))}, can be rebuilt"
        raise self._problem(why, f"{known}; a safetensors folder has its own")

    def _sentencepiece(self) -> SentencePiece:
        scores = [] if self.merges else self._list("scores", float)
        if not self.merges and (len(scores) != len(self.tokens) or not all(map(isfinite, scores))):
            raise self._problem(f"its {len(scores)} scores do not match its {len(self.tokens)} tokens")
        for rule in ("precompiled_charsmap", "remove_extra_whitespaces"):
            if self._metadata(rule):
                why = f"it changes text by a rule that is not supported ({rule})"
                raise self._problem(why, "give the safetensors folder, which has its own tokenizer")
        return SentencePiece.of(self.metadata, self.tokens, self.types, scores, self.merges)

    def _metadata(self, key: str) -> Any:
        return self.metadata.get(f"tokenizer.ggml.{key}")

    def _list(self, key: str, kind: type[T]) -> list[T]:
        value = self._metadata(key)
        if not isinstance(value, list) or not value or not all(isinstance(entry, kind) for entry in value):
            raise self._problem(f"its metadata has no usable tokenizer.ggml.{key}")
        return value

    def _problem(
        self, why: str, fix: str = "convert the model again, or choose another file"
    ) -> SpecdecError:
        return SpecdecError(f"the tokenizer of {self.file} cannot be rebuilt", why, fix)
