"""How each kind of byte-level BPE splits text before merging, as data (GGUF: `tokenizer.ggml.pre`)."""

from dataclasses import dataclass

from tokenizers import Regex, decoders, normalizers, pre_tokenizers, processors


@dataclass(frozen=True)
class Kind:
    """One kind: each of `cuts` splits what the ones before left whole; `as_gpt2` finally splits as GPT-2 does."""

    tokenizer_class: str
    cuts: tuple[str, ...] = ()
    as_gpt2: bool = False
    nfc: bool = (
        False  # the models' own tokenizers do it; GGUF files don't say it, and llama.cpp leaves it out
    )
    whole_words_first: bool = False  # a word that is itself a token is never merged ("ignore_merges")
    adds_bos: bool = False
    adds_space: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The steps that split text into words and spell them in the byte alphabet."""
        cuts = (pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.cuts)
        spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.as_gpt2)
        return pre_tokenizers.Sequence([*cuts, spelling]) if self.cuts else spelling

    def normalizer(self) -> normalizers.Normalizer | None:
        """The first step on a text, if there is one."""
        return normalizers.NFC() if self.nfc else None

    def decoder(self) -> decoders.Decoder:
        """From the byte alphabet back to text."""
        return decoders.ByteLevel()

    def post_processors(self) -> list[processors.PostProcessor]:
        """The steps after encoding, except the BOS, which the caller adds."""
        return [processors.ByteLevel(trim_offsets=False)]


_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_WORDS = rf"{_CONTRACTION}|{_BEFORE}\p{{L}}+"
_LINES_AND_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_LINES_AND_SPACES}"
_REST_WITH_SLASHES = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_LINES_AND_SPACES}"
_DIGIT, _DIGITS, _GROUPS = r"\p{N}", r"\p{N}+", r"\p{N}{1,3}"
_ONE_DIGIT_EACH = rf"{_WORDS}|{_DIGIT}|{_REST}"
_GROUPS_OF_DIGITS = rf"{_WORDS}|{_GROUPS}|{_REST}"
_QWEN_35 = (  # marks belong to words
    rf"{_CONTRACTION}|{_BEFORE}[\p{{L}}\p{{M}}]+|{_DIGIT}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES_AND_SPACES}"
)
_UPPER, _LOWER = (rf"[{letter}\p{{Lm}}\p{{Lo}}\p{{M}}]" for letter in (r"\p{Lu}\p{Lt}", r"\p{Ll}"))
_GPT_4O = (  # "HelloWorld" is two words, "it's" is one
    rf"{_BEFORE}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_BEFORE}{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|{_GROUPS}|{_REST_WITH_SLASHES}"
)
_TEKKEN = rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|{_DIGIT}|{_REST_WITH_SLASHES}"
_GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_THREE_DIGITS = "[0-9][0-9][0-9]"
_LINE_END, _EAST_ASIAN = r"[\r\n]", "[\u0800-\u9fa5\uac00-\ud7ff]+"
_CASED = (  # letters that are capital or small, as far as Unicode had them when the rule was written
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102"
    "\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
_POINTS = "!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002"
_DEEPSEEK_LLM = (_LINE_END, rf"\s?[{_CASED}]+", rf"\s?[{_POINTS}]+", r"\s+$", _EAST_ASIAN, _DIGITS)
_DEEPSEEK_CODER = (_LINE_END, r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, _DIGIT)
_FALCON = (r"[\p{P}$+<=>^`|~]+", _GPT_2, _THREE_DIGITS)
_MINICPM_5 = (_GROUPS, rf"{_WORDS}|{_DIGITS}|{_REST}")
_SEED_CODER = rf"{_WORDS}|{_DIGIT}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_LINES_AND_SPACES}"
_SUPERBPE = (_DIGITS, r"(?=(\d{3})+(?!\d))")
_VIKING = (" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+", _DIGIT)
_DEFAULT = (r"[\p{P}$+<=>^|~]+", _GPT_2, _DIGITS, _THREE_DIGITS)

DEFAULT = "default"
"""llama.cpp's choice for a file that names no kind, such as those from before May 2024."""

KINDS = {
    "command-r": Kind("PreTrainedTokenizerFast", (_DIGIT,), as_gpt2=True, nfc=True),
    "dbrx": Kind("PreTrainedTokenizerFast", (_GROUPS_OF_DIGITS,)),
    "deepseek-coder": Kind("PreTrainedTokenizerFast", _DEEPSEEK_CODER),
    "deepseek-llm": Kind("PreTrainedTokenizerFast", _DEEPSEEK_LLM),
    DEFAULT: Kind("PreTrainedTokenizerFast", _DEFAULT),
    "falcon": Kind("PreTrainedTokenizerFast", _FALCON),
    "glm4": Kind("PreTrainedTokenizerFast", (_GROUPS_OF_DIGITS,), whole_words_first=True),
    "gpt-2": Kind("GPT2Tokenizer", as_gpt2=True),
    "gpt-4o": Kind("PreTrainedTokenizerFast", (_GPT_4O,)),
    "llama-bpe": Kind("PreTrainedTokenizerFast", (_GROUPS_OF_DIGITS,), whole_words_first=True, adds_bos=True),
    "minicpm5": Kind("PreTrainedTokenizerFast", _MINICPM_5, whole_words_first=True),
    "olmo": Kind("PreTrainedTokenizerFast", as_gpt2=True, nfc=True),
    "qwen2": Kind("Qwen2Tokenizer", (_ONE_DIGIT_EACH,), nfc=True),
    "qwen35": Kind("PreTrainedTokenizerFast", (_QWEN_35,), nfc=True),
    "seed-coder": Kind("PreTrainedTokenizerFast", (_SEED_CODER,)),
    "smollm": Kind("GPT2Tokenizer", (_DIGIT,), as_gpt2=True),
    "superbpe": Kind("PreTrainedTokenizerFast", _SUPERBPE),
    "tekken": Kind("PreTrainedTokenizerFast", (_TEKKEN,), whole_words_first=True, adds_bos=True),
    "viking": Kind("PreTrainedTokenizerFast", _VIKING),
}
"""Every kind, by its first name."""

ALIASES = {
    "a.x-4.0": "gpt-2",
    "deepseek-r1-qwen": "qwen2",
    "exaone": "smollm",
    "falcon3": "llama-bpe",
    "granite-docling": "gpt-2",
    "llama-v3": "llama-bpe",
    "llama3": "llama-bpe",
    "mellum": "gpt-2",
    "midm-2.0": "llama-bpe",
    "minerva-7b": "smollm",
    "mpt": "olmo",
    "pixtral": "llama-bpe",
    "refact": "smollm",
    "smaug-bpe": "dbrx",
    "starcoder": "smollm",
    "trillion": "gpt-2",
}
"""Further names of the same kinds, which llama.cpp does not distinguish either."""


def kind_of(name: object) -> Kind | None:
    """The kind that a file's `tokenizer.ggml.pre` names, or None; no name at all is the default."""
    known = ALIASES.get(str(name), str(name)) if name else DEFAULT
    return KINDS.get(known)
