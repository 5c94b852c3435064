"""Real vocabularies encode as llama.cpp's own tests expect; they come with llama-cpp-python's source (77 MB, once).

Run with `pytest -m oracle`.
"""

import subprocess
import sys
import tarfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import pytest
from tokenizers import Tokenizer

from specdec_onnx.export.checkpoint.gguf_file import read_header
from specdec_onnx.export.checkpoint.gguf_tokenizer import GgufTokenizer
from specdec_onnx.models.system import cache_folder

pytestmark = [pytest.mark.oracle, pytest.mark.timeout(1800)]

REQUIREMENT = "llama-cpp-python==0.3.36"
SEPARATOR = "\n__ggml_vocab_test__\n"
NAMES = (
    *("command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2", "llama-bpe", "llama-spm"),
    *("mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder"),
)
OTHERS = ("bert-bge",)
"""Not the vocabulary of any family that is built."""


@pytest.fixture(scope="module")
def vocabularies() -> Path:
    """A folder with each NAME.gguf, .gguf.inp (texts) and .gguf.out (their ids); kept between runs."""
    folder = cache_folder() / "downloads" / REQUIREMENT.replace("==", "-")
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as fetched:
            _extract(_source(Path(fetched)), Path(fetched) / "found")
            (Path(fetched) / "found").rename(folder)
    return folder


def _source(folder: Path) -> Path:
    options = ["--no-deps", "--no-binary", REQUIREMENT.split("=")[0], "--dest", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", *options, REQUIREMENT], check=True)
    return next(folder.glob("*.tar.gz"))


def _extract(archive: Path, goal: Path) -> None:
    goal.mkdir()
    with tarfile.open(archive) as source:
        for member in source:
            name = PurePosixPath(member.name)
            if member.isfile() and name.parent.name == "models" and name.name.startswith("ggml-vocab-"):
                content = source.extractfile(member)
                assert content
                (goal / name.name.removeprefix("ggml-vocab-")).write_bytes(content.read())


def cases(folder: Path, name: str) -> Iterator[tuple[str, list[int]]]:
    texts = (folder / f"{name}.gguf.inp").read_bytes().decode().split(SEPARATOR)
    lines = (folder / f"{name}.gguf.out").read_text().splitlines()
    assert len(texts) - len(lines) in (0, 1)  # where a separator stands last, no text follows it
    for text, line in zip(texts, lines, strict=False):
        yield text, [int(index) for index in line.split()]


def rebuilt(folder: Path, name: str) -> Tokenizer:
    metadata = read_header(folder / f"{name}.gguf").metadata
    tokenizer = GgufTokenizer(name, metadata, 1 << 20).build()
    tokenizer.encode_special_tokens = True  # as the expected ids were made
    return tokenizer


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_that_llama_cpp_expects(vocabularies: Path, name: str) -> None:
    """llama.cpp never composes characters (NFC) first, as some models' own tokenizers do: such texts are encoded without."""
    whole, as_given = rebuilt(vocabularies, name), rebuilt(vocabularies, name)
    if name not in ("llama-spm", "phi-3", "gemma-4"):
        as_given.normalizer = None
    found = list(cases(vocabularies, name))
    assert len(found) >= 46
    for text, expected in found:
        composed = unicodedata.normalize("NFC", text) == text
        tokenizer = whole if composed else as_given
        assert tokenizer.encode(text, add_special_tokens=False).ids == expected, text


def test_every_vocabulary_is_compared_or_of_no_family_that_is_built(vocabularies: Path) -> None:
    there = {path.name.removesuffix(".gguf.inp") for path in vocabularies.glob("*.inp")}
    assert there == {*NAMES, *OTHERS}
