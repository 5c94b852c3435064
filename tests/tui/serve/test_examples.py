"""The programs in tests/examples run as their first lines say."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.served import Served

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_a_coroutine_reads_answers(served: Served) -> None:
    said = run(sys.executable, str(EXAMPLES / "asyncio_answers.py"), str(served.engine.pair.path))
    assert "'Name a river.': " in said and "'Name a lake.': " in said


def test_a_custom_proposer_changes_no_token(served: Served) -> None:
    said = run(sys.executable, str(EXAMPLES / "custom_proposer.py"), str(served.engine.pair.path))
    assert said.rstrip().endswith("}")


def test_the_official_client_streams_calls_a_tool_and_follows_a_schema(served: Served) -> None:
    said = run(sys.executable, str(EXAMPLES / "openai_client.py"), f"{served.url}/v1")
    assert "calls weather {'city': " in said and "fits {'city': " in said and "tokens_per_round" in said


@pytest.mark.skipif(not shutil.which("node"), reason="Node is not installed")
def test_a_program_in_javascript_streams_an_answer(served: Served) -> None:
    said = run("node", str(EXAMPLES / "fetch_client.mjs"), f"{served.url}/v1")
    expected = served.engine.generate("Name three rivers.", max_new_tokens=40)
    assert said == f"{expected}\ndone\n"


@pytest.mark.parametrize("file", sorted(EXAMPLES.iterdir()), ids=lambda file: file.name)
def test_an_example_is_short(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 60
