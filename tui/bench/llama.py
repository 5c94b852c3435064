"""llama.cpp's server as an opponent: where it is, and the GGUF files that a pair came from."""

import shutil
from collections.abc import Mapping, Sequence
from hashlib import file_digest
from pathlib import Path
from typing import Any

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder, section
from specdec_onnx.models.system import cache_folder
from specdec_onnx.runtime.engine import Engine
from specdec_onnx.tui.bench.machine import physical_cores
from specdec_onnx.tui.bench.opponent import Opponent, Program

PROGRAM = Program("llama.cpp", "specdec_onnx.tui.bench.llama_worker", "llama-server", patience=10.0)
PROBE = "The quick brown fox, 12 + 34."


def find_server(path: Path | None) -> Path:
    """The llama-server at `path`, or the one on the PATH. Raises SpecdecError if there is none."""
    found = shutil.which(path or "llama-server")
    if found is None:
        what = f"no program at {path}" if path else "no llama-server on the PATH"
        fix = "install llama.cpp, or give the path: --llama-server PATH"
        raise SpecdecError(what, f"--against {PROGRAM.name} runs the same prompts in it", fix)
    return Path(found).absolute()


def opponent(engine: Engine, server: Path, files: Sequence[Path], threads: int) -> Opponent:
    """Start the server with the GGUF files that the engine's pair came from, or with `files`: target, then draft.

    `threads` 0 means one for each physical core, as for the engine.
    """
    pair, roles = engine.pair, ("target", "draft")
    given = dict(zip(roles, files, strict=False))
    used = given or {role: source(model) for role, model in pair.models.items()}
    if missing := [file for file in used.values() if not file.is_file()]:
        raise SpecdecError(f"no file at {missing[0]}")
    unused = dict.fromkeys(roles)
    request = {
        "server": str(server),
        **(unused | {role: str(file.absolute()) for role, file in used.items()}),
        "context": engine.context,
        "probe": {"text": PROBE, "tokens": pair.target.tokenizer.encode(PROBE)},
    }
    models = unused | {role: _describe(file) for role, file in used.items()}
    described = {"name": used["target"].name, **models}
    return Opponent(PROGRAM, request, pair=described, threads=threads or physical_cores())


def source(model: ModelFolder) -> Path:
    """The GGUF file in the download cache that `model` was exported from. Raises SpecdecError if it isn't there."""
    recorded = section(model.facts, "source")
    name, digest = str(recorded.get("file", "")), recorded.get("sha256")
    fix = "give it: --against-gguf FILE, and again for the draft"
    if not name.endswith(".gguf"):
        raise SpecdecError(f"{model.name} was not exported from a GGUF file", "llama.cpp reads no other", fix)
    file = cache_folder() / "downloads" / Path(name).name
    if not file.is_file():
        raise SpecdecError(f"{file.name} is not in {file.parent}", f"{model.name} was exported from it", fix)
    with file.open("rb") as content:
        if file_digest(content, "sha256").hexdigest() != digest:
            why = f"its sha256 is not the one that {model.name} was exported from"
            raise SpecdecError(f"{file} is another file", why, fix)
    return file


def _describe(file: Path) -> Mapping[str, Any]:
    return {
        "name": file.stem,
        "format": "gguf",
        "weight_bytes": file.stat().st_size,
        "source": {"file": file.name},
    }
