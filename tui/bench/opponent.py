"""Other programs as contestants: each answers the same prompts, as token ids, in a process of its own."""

import argparse
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder, read_json, section
from specdec_onnx.models.pair import Pair, misfits, open_pair
from specdec_onnx.models.system import cache_folder
from specdec_onnx.runtime.engine import Engine
from specdec_onnx.runtime.generate import Statistics
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.tui.bench.figures import identical, summarize
from specdec_onnx.tui.bench.machine import describe_pair, physical_cores
from specdec_onnx.tui.bench.prompts import Prompt
from specdec_onnx.tui.bench.runs import Round, Run
from specdec_onnx.tui.child import Child

PROBE = "The quick brown fox, 12 + 34."
"""Text that tells whether a GGUF file has the pair's vocabulary."""

UNKNOWN = {
    *("drafted_by_position", "acceptance_by_position", "acceptance_by_source"),
    *("draft_seconds", "verify_seconds", "host_seconds"),
}
"""The figures of a mode that the other program cannot tell."""


def check(args: argparse.Namespace, settings: Parameters) -> None:
    """Raise SpecdecError for options that don't go together, and if the program to compare with is missing."""
    for program in PROGRAMS.values():
        for option in program.options:
            if getattr(args, option) and args.against != program.name:
                flag, needs = f"--{option.replace('_', '-')}", f"--against {program.name}"
                raise SpecdecError(f"{flag} needs {needs}", fix=f"add {needs}, or leave {flag} out")
    if len(args.against_gguf) > 2:
        raise SpecdecError("--against-gguf is given more than twice", fix="give the target, then the draft")
    if not args.against:
        return
    against = f"--against {args.against}"
    if settings != Parameters(max_new_tokens=settings.max_new_tokens, seed=settings.seed):
        raise SpecdecError(
            f"{against} compares greedy answers", "the programs sample and stop in different ways"
        )
    if {args.device, args.draft_device} - {"cpu", None} or args.all_turns:
        flag = "--all-turns" if args.all_turns else "--device"
        raise SpecdecError(
            f"{against} and {flag} exclude each other", "it runs on the CPU and answers one turn"
        )
    PROGRAMS[args.against].require(args)


def start(engine: Engine, args: argparse.Namespace) -> "Opponent":
    """Start the program that the options name, with the engine's models and threads."""
    program = PROGRAMS[args.against]
    return Opponent(program, program.models(engine, args), args.threads or physical_cores())


class Models(NamedTuple):
    """What the worker is told, what it runs (as in `describe_pair`), and whether these are the engine's own files."""

    request: Mapping[str, Any]
    pair: Mapping[str, Any]
    same_weights: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """A program to compare with: its name for --against, the module that runs it, and its name in messages.

    Attributes:
        options: only with this program do these make sense.
        require: raises SpecdecError if the program is missing.
        models: chooses what it runs.
        patience: seconds that the worker gets to end what it started.
    """

    name: str
    worker: str
    title: str
    options: tuple[str, ...]
    require: Callable[[argparse.Namespace], None]
    models: Callable[[Engine, argparse.Namespace], Models]
    patience: float = 0.0


class Opponent:
    """A running program with its models loaded, until it is closed. Raises SpecdecError if it fails.

    Attributes:
        modes: the ways to speculate that it allows, with their settings.
        peak_memory_bytes: the worker's, after the latest answer; None if the program does not tell.
    """

    def __init__(self, program: Program, models: Models, threads: int) -> None:
        self._worker = Child(program.worker)
        self.program, self.models, self.threads = program, models, threads
        self.peak_memory_bytes: int | None = None
        try:
            loaded = self._exchange({**models.request, "threads": threads})
        except BaseException:
            self.close()
            raise
        self.version: str = loaded["version"]
        self.modes: Mapping[str, Any] = loaded["modes"]

    def close(self) -> None:
        """End the program, whatever it is doing."""
        self._worker.close(self.program.patience)

    def named(self, mode: str) -> str:
        """What the figures of `mode` are listed under: `ort-genai ngram` and so on."""
        return f"{self.program.name} {mode}"

    def answer(self, engine: Engine, mode: str, raw: bool, prompt: Prompt, most: int, again: bool) -> Run:
        """Let the program answer the prompt's first turn greedily; it gets the engine's token ids.

        If it is asked `again`, it may keep what it has in its cache.
        """
        tokens = prompt.tokens(engine.pair.target, raw=raw)
        room = min(len(tokens) + most, engine.context)
        reply = self._exchange({"mode": mode, "tokens": tokens, "max_length": room, "again": again})
        self.peak_memory_bytes = reply.pop("peak_memory_bytes", None)
        answer = tuple(reply.pop("tokens"))
        counts = {"prompt_tokens": len(tokens), "new_tokens": len(answer)} | reply
        return Run(prompt.category, answer, (Statistics(**counts),))

    def _exchange(self, message: Mapping[str, Any]) -> dict[str, Any]:
        self._worker.tell(message)
        reply = self._worker.hear() or {"error": self._worker.last_words()}
        if "error" in reply:
            raise SpecdecError(f"{self.program.title} failed", reply["error"])
        return reply


def figures(opponent: Opponent, rounds: Sequence[Round], ours: Mapping[str, Any]) -> dict[str, Any]:
    """The report's `against.NAME`; `ours` are the figures of the engine's auto mode.

    `speed_ratio` is our auto over its best mode, in decoded tokens per second. `identical_to_plain` compares with its own
    plain decoding, `identical_to_ours` with ours: None if it runs other weights, whose answers may differ.
    """
    names = {mode: opponent.named(mode) for mode in opponent.modes}
    summaries = summarize(rounds, names.values(), comparable=True)
    modes: dict[str, Any] = {}
    plain = names["plain"]
    for mode, name in names.items():
        same = sum(identical(round_, name, "plain") for round_ in rounds)
        modes[mode] = {key: value for key, value in summaries[name].items() if key not in UNKNOWN}
        modes[mode]["identical_to_plain"] = sum(_as_its_plain(round_, name, plain) for round_ in rounds)
        modes[mode]["settings"] = opponent.modes[mode]
        modes[mode]["identical_to_ours"] = same if opponent.models.same_weights else None
    best = max(modes, key=lambda mode: modes[mode]["decode_tokens_per_second"])
    whole, reading = (
        max(mode[rate] for mode in modes.values())
        for rate in ("end_to_end_tokens_per_second", "prefill_tokens_per_second")
    )
    return {
        "version": opponent.version,
        "threads": opponent.threads,
        "pair": opponent.models.pair,
        "modes": modes,
        "best_mode": best,
        "speed_ratio": _ratio(ours["decode_tokens_per_second"], modes[best]["decode_tokens_per_second"]),
        "end_to_end_ratio": _ratio(ours["end_to_end_tokens_per_second"], whole),
        "prefill_ratio": _ratio(ours["prefill_tokens_per_second"], reading),
        "peak_memory_bytes": opponent.peak_memory_bytes,
    }


def _as_its_plain(round_: Round, name: str, plain: str) -> bool:
    """Whether its answers are those of its plain decoding; those from the cache may differ from the first ones."""
    return all(
        identical(
            {each: [run for run in runs if run.again is again] for each, runs in round_.items()}, name, plain
        )
        for again in {run.again for run in round_[plain]}
    )


def _ratio(ours: float, theirs: float) -> float | None:
    return round(ours / theirs, 3) if theirs else None


def _require_genai(args: argparse.Namespace) -> None:
    if find_spec("onnxruntime_genai") is None:
        raise SpecdecError(
            "onnxruntime-genai is not installed",
            "--against ort-genai runs the same prompts in it",
            "pip install onnxruntime-genai",
        )


def _genai_models(engine: Engine, args: argparse.Namespace) -> Models:
    """The engine's pair, or another export of it."""
    pair = engine.pair
    if args.against_pair:
        pair = open_pair(args.against_pair)
        if problems := misfits(engine.pair.target, pair.target):
            why, fix = "; ".join(problems), "give an export of the same model"
            raise SpecdecError(f"{args.against_pair} is another model", why, fix)
    request: dict[str, Any] = {"target": str(require_config(pair.target.path)), "pair": _composite(pair)}
    request["keep"] = args.long and args.repeat > 1 and not args.isolated
    return Models(request, describe_pair(pair), pair.target.graph.samefile(engine.pair.target.graph))


def require_config(path: Path) -> Path:
    """A model folder that onnxruntime-genai can open. Raises SpecdecError for another one."""
    if not (path / "genai_config.json").is_file():
        raise SpecdecError(
            f"onnxruntime-genai cannot open {path}", "it has no genai_config.json", "export it again"
        )
    return path


def _composite(pair: Pair) -> str | None:
    """The folder whose genai_config.json names both models of this pair, if there is one."""
    model = section(read_json(pair.path / "genai_config.json"), "model")
    named = bool(section(model, "draft").get("filename"))
    own = pair.draft is not None and pair.draft.path.is_relative_to(pair.path)
    return str(pair.path) if named and own else None


def _require_llama(args: argparse.Namespace) -> None:
    """Find llama-server where the options say, or on the PATH."""
    path = args.llama_server
    found = shutil.which(path or "llama-server")
    if found is None:
        what = f"no program at {path}" if path else "no llama-server on the PATH"
        fix = "install llama.cpp, or give the path: --llama-server PATH"
        raise SpecdecError(what, "--against llama.cpp runs the same prompts in it", fix)
    args.llama_server = Path(found).absolute()


def _llama_models(engine: Engine, args: argparse.Namespace) -> Models:
    """The GGUF files that the options name, target first, or those that the engine's pair came from."""
    roles = ("target", "draft")
    given = dict(zip(roles, args.against_gguf, strict=False))
    files = given or {role: source(model) for role, model in engine.pair.models.items()}
    if missing := [file for file in files.values() if not file.is_file()]:
        raise SpecdecError(f"no file at {missing[0]}")
    unused: dict[str, Any] = dict.fromkeys(roles)
    request = unused | {role: str(file.absolute()) for role, file in files.items()}
    probe = {"text": PROBE, "tokens": engine.pair.target.tokenizer.encode(PROBE)}
    request |= {"server": str(args.llama_server), "context": engine.context, "probe": probe}
    described = unused | {role: _describe(file) for role, file in files.items()}
    return Models(request, {"name": files["target"].name, **described})


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


PROGRAMS = {
    "ort-genai": Program(
        "ort-genai",
        "specdec_onnx.tui.bench.genai_worker",
        "onnxruntime-genai",
        ("against_pair",),
        _require_genai,
        _genai_models,
    ),
    "llama.cpp": Program(
        "llama.cpp",
        "specdec_onnx.tui.bench.llama_worker",
        "llama-server",
        ("against_gguf", "llama_server"),
        _require_llama,
        _llama_models,
        patience=10.0,
    ),
}
