"""What gets installed, and what each entrance imports."""

import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path

import pytest

from specdec_onnx.tui.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ROOMS = ("runtime", "export", "models", "tui")
HEAVY = {
    "numpy",
    "onnxruntime",
    "onnx",
    "torch",
    "transformers",
    "textual",
    "rich",
    "gguf",
    "tokenizers",
    "jinja2",
    "matplotlib",
}


def package_of(folder: Path) -> str:
    """The import name that pyproject.toml gives to a source folder."""
    mapping = PROJECT["tool"]["setuptools"]["package-dir"]
    exact = {Path(path): name for name, path in mapping.items()}
    if folder in exact:
        return exact[folder]
    return f"{package_of(folder.parent)}.{folder.name}"


def source_folders() -> list[Path]:
    files = [file for room in ROOMS for file in (ROOT / room).rglob("__init__.py")]
    return sorted(file.parent.relative_to(ROOT) for file in files)


def loaded_by(code: str) -> set[str]:
    """Which heavy packages a fresh interpreter has loaded after `code`."""
    script = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return HEAVY & set(done.stdout.splitlines()[-1].split())


def test_every_source_folder_is_a_listed_package() -> None:
    assert {package_of(folder) for folder in source_folders()} == set(
        PROJECT["tool"]["setuptools"]["packages"]
    )


@pytest.mark.parametrize("folder", source_folders(), ids=str)
def test_package_is_importable_from_its_folder(folder: Path) -> None:
    spec = find_spec(package_of(folder))
    assert spec is not None and spec.origin is not None
    assert Path(spec.origin).resolve() == (ROOT / folder / "__init__.py").resolve()


def test_every_data_file_is_packaged() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*") if file.is_file()]
    data = [file for file in files if file.suffix != ".py" and "__pycache__" not in file.parts]
    assert [file for file in data if not any(fnmatch(file.name, pattern) for pattern in patterns)] == []


def test_the_functions_behind_the_commands_exist() -> None:
    for target in PROJECT["project"]["scripts"].values():
        module, _, name = target.partition(":")
        spec = find_spec(module)
        assert spec is not None and f"def {name}(" in Path(str(spec.origin)).read_text(encoding="utf-8")


def test_importing_the_package_is_light() -> None:
    assert loaded_by("import specdec_onnx") == set()


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "from specdec_onnx.tui.cli.main import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit as end: assert end.code == 0"
    )
    assert loaded_by(code) == set()


def test_a_heavy_import_would_be_noticed() -> None:
    assert "numpy" in loaded_by("import numpy")


def test_the_public_api_leaves_the_exporter_alone() -> None:
    assert (
        loaded_by("from specdec_onnx import load") & {"onnx", "torch", "transformers", "textual", "gguf"}
        == set()
    )
