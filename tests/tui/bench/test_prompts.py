"""Benchmark prompt files: the formats people have, and what is said about broken ones."""

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.tui.bench.prompts import Prompt, built_in_prompts, read_prompts


def write(file: Path, *lines: Any) -> Path:
    text = "\n".join(
        line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines
    )
    file.write_bytes(gzip.compress(text.encode()) if file.suffix == ".gz" else text.encode())
    return file


def test_category_and_prompt_are_read(tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", {"category": "prose", "prompt": "Hi"}, "", {"prompt": "Ho"})
    assert read_prompts(file) == [Prompt("prose", ("Hi",)), Prompt("all", ("Ho",))]


def test_spec_bench_conversations_are_read(tmp_path: Path) -> None:
    file = write(
        tmp_path / "p.jsonl", {"question_id": 81, "category": "writing", "turns": ["first", "second"]}
    )
    assert read_prompts(file) == [Prompt("writing", ("first",))]
    assert read_prompts(file, all_turns=True) == [Prompt("writing", ("first", "second"))]


def test_gzipped_human_eval_is_read(tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl.gz", {"task_id": "HumanEval/0", "prompt": "def f():\n", "test": "…"})
    assert read_prompts(file) == [Prompt("code", ("def f():\n",))]


def test_limit_takes_the_first(tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", *({"prompt": str(number)} for number in range(5)))
    assert [prompt.turns for prompt in read_prompts(file, limit=2)] == [("0",), ("1",)]


def test_line_separators_inside_a_prompt_do_not_end_the_line(tmp_path: Path) -> None:
    file = write(tmp_path / "p.jsonl", {"prompt": "a\u2028b\x85c"})
    assert read_prompts(file)[0].turns == ("a\u2028b\x85c",)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['{"prompt": "a"}', "{oops"], ":2 is not JSON"),
        (['{"prompt": "a"}', '{"prompt": "cut \\ud83d"}'], ":2 holds half of a character"),
        (['{"prompt": "a", "category": "\\ude00\\ud83d"}'], ":1 holds half of a character"),
        (['{"prompt": ' + "[" * 100_000 + "]" * 100_000 + "}"], ":1 is not JSON"),
        (['{"prompt": "a", "question_id": ' + "9" * 5000 + "}"], ":1 is not JSON"),
        (["[1]"], ":1 is not a JSON object"),
        ([{"category": "x"}], ":1 has no prompt"),
        ([{"turns": []}], ":1 has no prompt"),
        ([{"turns": [1]}], ":1 has no prompt"),
        ([{"prompt": ""}], ":1 has no prompt"),
        ([""], "has no prompts"),
    ],
)
def test_a_broken_file_is_an_error_that_names_the_line(tmp_path: Path, lines: list[Any], said: str) -> None:
    with pytest.raises(SpecdecError, match=said):
        read_prompts(write(tmp_path / "p.jsonl", *lines))


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "torn.gz").write_bytes(gzip.compress(b'{"prompt": "a"}')[:-4])
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "caf\xe9"}')
    (tmp_path / "plain.gz").write_bytes(b'{"prompt": "a"}')
    zipped = gzip.compress(b'{"prompt": "a"}' * 99)
    (tmp_path / "broken.gz").write_bytes(zipped[:12] + b"\xff" * 8 + zipped[20:])
    (tmp_path / "folder").mkdir()
    for name in ("missing.jsonl", "torn.gz", "latin.jsonl", "plain.gz", "broken.gz", "folder"):
        with pytest.raises(SpecdecError, match="cannot read prompts"):
            read_prompts(tmp_path / name)


def test_built_in_prompts_cover_many_kinds() -> None:
    prompts = built_in_prompts()
    kinds = {prompt.category for prompt in prompts}
    assert len(prompts) >= 24
    assert len(kinds) >= 8
    assert {prompt.category for prompt in prompts[: len(kinds)]} == kinds
    assert built_in_prompts(limit=3) == prompts[:3]


@pytest.mark.parametrize("name", ["p.jsonl", "p.jsonl.gz", "zipped"])
def test_a_byte_order_mark_and_zipping_do_not_matter(tmp_path: Path, name: str) -> None:
    content = b"\xef\xbb\xbf" + b'{"prompt": "a\\u0000\\ud83d\\ude00"}\r\n'
    (tmp_path / name).write_bytes(content if name == "p.jsonl" else gzip.compress(content))
    assert read_prompts(tmp_path / name) == [Prompt("all", ("a\0\U0001f600",))]


def test_a_dash_reads_the_prompts_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    text = '\ufeff{"prompt": "Hi"}\r\n{"prompt": "Ho"}\r\n'
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert read_prompts(Path("-")) == [Prompt("all", ("Hi",)), Prompt("all", ("Ho",))]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"{}")))
    with pytest.raises(SpecdecError, match="stdin:1 has no prompt"):
        read_prompts(Path("-"))
