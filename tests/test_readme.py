"""The README's commands are real, every example parses, and what README and contributors' page name exists."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from specdec_onnx.export import cli as export_cli
from specdec_onnx.tui.cli import main as cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands() -> list[str]:
    """Every line of the README's shell blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def arguments_of(program: str) -> list[list[str]]:
    """The arguments of each call of `program` in them."""
    calls = [part.strip() for line in commands() for part in re.split(r"&&|\|", line)]
    words = [shlex.split(call) for call in calls]
    return [call[1:] for call in words if Path(call[0]).name == program]


def test_first_command_ends_in_the_demo() -> None:
    assert commands()[0].endswith("&& .venv/bin/specdec demo")


def test_ci_runs_the_test_command() -> None:
    test_command = commands()[1]
    assert test_command.endswith("tests/check.py")
    assert (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()[-1] == test_command


@pytest.mark.parametrize("arguments", arguments_of("specdec"), ids=shlex.join)
def test_specdec_example_parses(arguments: list[str]) -> None:
    assert cli.build_parser().parse_args(arguments).command == arguments[0]


@pytest.mark.parametrize("arguments", arguments_of("specdec-export"), ids=shlex.join)
def test_export_example_parses(arguments: list[str]) -> None:
    assert export_cli.build_parser().parse_args(arguments).source == arguments[0]


def test_there_is_an_example_of_each_command() -> None:
    assert {"run", "bench", "demo"} <= {arguments[0] for arguments in arguments_of("specdec")}
    assert arguments_of("specdec-export")


@pytest.mark.parametrize("page", ["README.md", ".github/CONTRIBUTING.md"])
def test_links_lead_to_files(page: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_the_desktop_example_is_linked() -> None:
    assert "](tests/examples/desktop_window.py)" in README


def test_the_readme_gives_the_reason_for_each_dependency() -> None:
    file = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, build = file["project"], file["build-system"]["requires"]
    lists = [build, project["dependencies"], *project["optional-dependencies"].values()]
    names = {re.split(r"[^\w.-]", each, maxsplit=1)[0] for requirements in lists for each in requirements}
    table = README[README.index("| needed by | ") :]
    own = {"specdec-onnx", *(name for name in names if name.startswith("onnxruntime"))}
    plugins = {"pytest-asyncio", "pytest-timeout"}
    assert [name for name in sorted(names - own - plugins) if name not in table] == []


def test_the_readme_says_what_selects_and_compiles_the_kernels() -> None:
    assert "SPECDEC_KERNELS" in README and "ziglang" in README


def test_the_files_of_the_contributors_page_exist() -> None:
    page = (ROOT / ".github/CONTRIBUTING.md").read_text(encoding="utf-8")
    folders = [ROOT / room for room in ("runtime", "export", "models", "tui", "tests")]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    named = set(re.findall(r"`([\w/]+\.py)`", page))
    assert [name for name in sorted(named) if not any(file.match(name) for file in files)] == []
