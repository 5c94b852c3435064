"""The project's whole check: lint, types, import contracts, tests. `python tests/check.py [pytest arguments]`."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINKS = ROOT / ".typecheck"
IMPORT_CONTRACTS = """
import sys
from importlinter.cli import lint_imports_command
sys.path.insert(0, ".typecheck")  # the packages as files: import-linter follows no editable install
lint_imports_command()
"""


def link_type_roots() -> None:
    """Show mypy the root folders as the package that setuptools maps them to."""
    mapping = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    top = LINKS / "specdec_onnx"
    top.mkdir(parents=True, exist_ok=True)
    links = {
        top / name.removeprefix("specdec_onnx."): ROOT / folder
        for name, folder in mapping.items()
        if "." in name
    }
    links |= {top / file.name: file for file in (ROOT / mapping["specdec_onnx"]).iterdir() if file.is_file()}
    for link, goal in links.items():
        if not link.is_symlink():
            link.symlink_to(goal, target_is_directory=goal.is_dir())


def main() -> int:
    """Run each step in turn; the first that fails decides the exit code."""
    link_type_roots()
    python = sys.executable
    steps = [
        [python, "-m", "ruff", "check", "."],
        [python, "-m", "ruff", "format", "--check", "."],
        [python, "-m", "mypy"],
        [python, "-c", IMPORT_CONTRACTS],
        [python, "-m", "pytest", *sys.argv[1:]],
    ]
    for step in steps:
        code = subprocess.run(step, cwd=ROOT, check=False).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
