"""How each kind of byte-level BPE cuts text before merging, as data (GGUF: `tokenizer.ggml.pre`)."""

from dataclasses import dataclass

from tokenizers import Regex, decoders, normalizers, pre_tokenizers, processors

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class Kind:
    """One kind; with no `pattern` the byte-level step cuts as GPT-2 does."""

    tokenizer_class: str
    pattern: str | None = None
    single_digits: bool = False
    nfc: bool = False
    whole_words_first: bool = False  # a word that is itself a token is never merged ("ignore_merges")
    adds_bos: bool = False
    adds_space: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The steps that cut text into words and turn them into the byte alphabet."""
        steps: list[pre_tokenizers.PreTokenizer] = []
        if self.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.pattern:
            steps.append(pre_tokenizers.Split(Regex(self.pattern), behavior="isolated"))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.pattern is None))
        return steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)

    def normalizer(self) -> normalizers.Normalizer | None:
        """What is done to text before all else, if anything."""
        return normalizers.NFC() if self.nfc else None

    def decoder(self) -> decoders.Decoder:
        """Out of the byte alphabet."""
        return decoders.ByteLevel()

    def post_processors(self) -> list[processors.PostProcessor]:
        """What follows encoding, before a BOS is put first."""
        return [processors.ByteLevel(trim_offsets=False)]


_UPPER, _LOWER = (rf"[{letter}\p{{Lm}}\p{{Lo}}\p{{M}}]" for letter in (r"\p{Lu}\p{Lt}", r"\p{Ll}"))
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_REST_WITH_SLASHES = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GROUPS_OF_DIGITS = rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_GPT_4O = (  # "HelloWorld" is two words, "it's" is one
    rf"{_BEFORE}{_UPPER}*{_LOWER}+{_CONTRACTION}|{_BEFORE}{_UPPER}+{_LOWER}*{_CONTRACTION}"
    rf"|\p{{N}}{{1,3}}|{_REST_WITH_SLASHES}"
)
_TEKKEN = rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}|{_REST_WITH_SLASHES}"

KINDS = {
    "dbrx": Kind("PreTrainedTokenizerFast", _GROUPS_OF_DIGITS),
    "gpt-2": Kind("GPT2Tokenizer"),
    "gpt-4o": Kind("PreTrainedTokenizerFast", _GPT_4O),
    "refact": Kind("GPT2Tokenizer", single_digits=True),
    "smaug-bpe": Kind("PreTrainedTokenizerFast", _GROUPS_OF_DIGITS),
    "smollm": Kind("GPT2Tokenizer", single_digits=True),
    "qwen2": Kind("Qwen2Tokenizer", rf"{_WORDS}|\p{{N}}|{_REST}", nfc=True),
    "llama-bpe": Kind("PreTrainedTokenizerFast", _GROUPS_OF_DIGITS, whole_words_first=True, adds_bos=True),
    "tekken": Kind("PreTrainedTokenizerFast", _TEKKEN, whole_words_first=True, adds_bos=True),
}
