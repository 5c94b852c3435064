"""Small tokenizers with every kind of decoder, and one vocabulary that is hard on all of them."""

from functools import lru_cache
from pathlib import Path

from support.tiny import export_tiny
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models

PIECES = (
    "a", "ha", "b c", "▁", "▁Paris", "▁is▁", "▁▁", "##ing", "##", "word", "low</w>", "</w>", "er</w>e", "<pad>", "|", "n't", ".",
    " .", "'", " ", "  ", "é", "漢", "�", "Ġ", "Ġthe", "Ċ", "do", "not", "\xa0", "ĠðŁ", "ļĢ", "Ã", "©", "ð", "Ł", "ÿ", "<0x", "0x41>", "<0x+F>",
)  # fmt: skip
BYTES = (
    0x00,
    0x0A,
    0x20,
    0x24,
    0x41,
    0x80,
    0x82,
    0xA0,
    0xA9,
    0xAC,
    0xC3,
    0xE2,
    0xE6,
    0xED,
    0xF0,
    0x9F,
    0x98,
    0x80,
    0xF4,
    0xFF,
)
SPECIAL = ("<s>", "</s>", "<|im_end|>")
NORMAL = ("<think>", "two words", "漢語")

_SPACES = decoders.Replace("▁", " ")
DECODERS = {
    "none": None,
    "byte-level": decoders.ByteLevel(),
    "llama": decoders.Sequence([_SPACES, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
    "gemma": decoders.Sequence([_SPACES, decoders.ByteFallback(), decoders.Fuse()]),
    "byte-fallback": decoders.ByteFallback(),
    "metaspace": decoders.Metaspace(),
    "metaspace first": decoders.Metaspace(prepend_scheme="first"),
    "metaspace never": decoders.Metaspace(prepend_scheme="never"),
    "metaspace of bytes": decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
    "word pieces": decoders.WordPiece(),
    "word pieces as they are": decoders.WordPiece(cleanup=False),
    "word ends": decoders.BPEDecoder(),
    "ctc": decoders.CTC(),
    "ctc as it is": decoders.CTC(cleanup=False),
    "stripped tokens": decoders.Sequence([_SPACES, decoders.Strip(" ", 1, 0), decoders.ByteFallback()]),
    "stripped ends": decoders.Sequence([_SPACES, decoders.Fuse(), decoders.Strip(" ", 2, 0), decoders.Fuse()]),
    "replaced over tokens": decoders.Sequence(
        [decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("a▁", "ä"), decoders.Replace("▁", " ")]
    ),
    "pattern": decoders.Sequence([decoders.Replace(Regex("[▁Ġ]+"), " "), decoders.Fuse()]),
    "pattern over all": decoders.Sequence([decoders.Fuse(), decoders.Replace(Regex("(a|ha)+"), "x")]),
    "word ends, then fused": decoders.Sequence([decoders.BPEDecoder(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
    "nested": decoders.Sequence([decoders.Sequence([_SPACES, decoders.ByteFallback()]), decoders.Fuse()]),
    "bytes, then stripped": decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 3, 0)]),
}  # fmt: skip


@lru_cache
def tokenizer_kind(kind: str) -> Tokenizer:
    """A tokenizer with the decoder of that name over PIECES, BYTES, then SPECIAL and NORMAL added tokens."""
    pieces = dict.fromkeys([*PIECES, *(f"<0x{byte:02X}>" for byte in BYTES)])
    made = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="a"))
    made.decoder = DECODERS[kind]
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    made.add_tokens([AddedToken(text, normalized=False) for text in NORMAL])
    return made


def export_kind(kind: str, folder: Path) -> Path:
    """A base model (no chat template) at `folder` with that tokenizer and random weights."""
    export_tiny(folder, format="w8a8", seed=11)
    tokenizer_kind(kind).save(str(folder / "tokenizer.json"))
    for name in ("tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    return folder
