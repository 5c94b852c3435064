"""The command line: the arguments of every `specdec` command. It imports nothing heavy, so that `--help` is quick."""

import argparse
import os
from collections.abc import Callable, Collection
from pathlib import Path
from threading import TIMEOUT_MAX

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.system import user_path
from specdec_onnx.runtime.sampling.parameters import NUMBERS
from specdec_onnx.tui.chat.settings import DEVICES

MODES = ("plain", "suffix", "draft", "auto")
CACHES = ("auto", "fp32")
OPPONENTS = ("ort-genai", "llama.cpp")
"""Programs that `specdec bench` can compare with."""

KERNEL_SETS = ("specdec", "onnxruntime")
"""What can multiply on the CPU: our kernels, or ONNX Runtime's."""

BENCH_TOKENS = 96
"""Length of an answer in `specdec bench`, unless it is given."""


def chat_arguments(parser: argparse.ArgumentParser) -> None:
    """Which pair, which conversation, where to show it."""
    _add_pair(parser, nargs="?", more=" (default: the last one used)")
    parser.add_argument(
        "-c", "--continue", dest="latest", action="store_true", help="open the latest conversation"
    )
    _add_draft(parser, user_text)
    about = "where to run; auto measures and takes the fastest (default: %(default)s)"
    parser.add_argument("--device", choices=DEVICES, default="cpu", help=about)
    _add_threads(parser)
    _add_context(parser)
    _add_cache(parser)
    group = parser.add_argument_group("in a browser")
    _add_switch(group, "--serve", "serve the chat to a browser on this machine")
    group.add_argument("--host", default="localhost", help="address to serve at (default: %(default)s)")
    _add_number(group, "--port", "port to serve at (default: %(default)s)", 8000)


def run_arguments(parser: argparse.ArgumentParser) -> None:
    """PAIR, the prompt, and how to answer it."""
    _add_engine(parser)
    parser.add_argument(
        "prompt",
        nargs="*",
        default=[],
        type=text,
        metavar="PROMPT",
        help="what to answer; a - in it stands for the text on stdin, as in: "
        'cat FILE | specdec run PAIR "Explain this file" -. Without PROMPT, stdin is the prompt',
    )
    parser.add_argument("--system", type=text, metavar="TEXT", help="instructions that go before the prompt")
    _add_switch(parser, "--raw", "continue the prompt as it is, without the chat template")
    about = "put the text of this file before the prompt; what the model reads of it is kept on disk for the next time"
    parser.add_argument("--cache-prompt", type=user_path, metavar="FILE", help=about)
    _add_switch(parser, "--json", "print one JSON object once the answer is complete")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--mode",
        choices=MODES,
        default="auto",
        help="what drafts tokens: nothing (plain), the text so far (suffix), the draft model (draft), or both "
        "as far as they pay (auto) (default: %(default)s)",
    )
    mode.add_argument(
        "--no-speculate", dest="mode", action="store_const", const="plain", help="same as --mode plain"
    )
    _add_sampling(parser, max_new_tokens=512)
    _add_grammar(parser)


def serve_arguments(parser: argparse.ArgumentParser) -> None:
    """PAIR, where to serve it and to whom, and what a request leaves out."""
    _add_engine(parser)
    group = parser.add_argument_group("server")
    about = "address to serve at; any but this machine's own needs --api-key (default: %(default)s)"
    group.add_argument("--host", default="127.0.0.1", help=about)
    _add_number(group, "--port", "port to serve at (default: %(default)s)", 8080)
    about = (
        "what clients must send as their API key (default: SPECDEC_API_KEY from the environment, else none)"
    )
    group.add_argument("--api-key", default=os.environ.get("SPECDEC_API_KEY"), metavar="KEY", help=about)
    about = "let pages of this origin use the server, as in http://localhost:3000; * for all (repeatable)"
    group.add_argument("--cors", action="append", default=[], metavar="ORIGIN", help=about)
    group.add_argument("--name", type=text, help="what clients call the model (default: the folder's name)")
    about = "requests that may be answered or wait at the same time; more are refused (default: %(default)s)"
    _add_number(group, "--queue", about, 32)
    _add_sampling(parser, max_new_tokens="until the context is full")


def bench_arguments(parser: argparse.ArgumentParser) -> None:
    """PAIR, the prompts, the modes, and where the figures go."""
    _add_engine(parser)
    parser.add_argument(
        "--prompts",
        type=user_path,
        metavar="FILE",
        help='JSON lines, also gzipped, or - for stdin: {"category", "prompt"}, Spec-Bench\'s {"category", "turns"} '
        'or HumanEval\'s {"task_id", "prompt"} (default: 27 built-in prompts in nine categories; --limit 9 takes one of each)',
    )
    about = (
        "six other built-in prompts, of 2,000 to 6,000 tokens: files to edit, logs to summarize, chats (--limit 3 takes "
        "one of each); every program reads each once, and its repeats follow from its cache, unless --isolated"
    )
    _add_switch(parser, "--long", about)
    _add_number(parser, "--limit", "only the first N prompts")
    _add_switch(parser, "--all-turns", "answer every turn of a conversation, not only the first")
    _add_switch(parser, "--raw", "give prompts to the model without the chat template")
    _add_modes(
        parser, f"any of {', '.join(MODES)} (default: all that the pair supports); plain is always measured"
    )
    about = "run everything N times; report the median and the spread (default: %(default)s)"
    _add_number(parser, "--repeat", about, 1)
    about = (
        "seed for the order of the prompts; caches are kept between answers, as in real use, but no prompt is "
        "repeated at once, so none is read from a cache (default: %(default)s)"
    )
    _add_number(parser, "--order-seed", about, 0)
    about = "keep the order of the file and empty the caches before every answer (implied by --against)"
    _add_switch(parser, "--isolated", about)
    about = "compare with this installed program: it answers the same prompts, taking turns with our modes"
    parser.add_argument("--against", choices=OPPONENTS, help=about)
    about = "the pair that ort-genai runs, such as an int4 export of the same model (default: PAIR)"
    parser.add_argument("--against-pair", type=user_path, metavar="FOLDER", help=about)
    about = (
        "the GGUF file that llama.cpp runs; give it twice for target and draft (default: the downloaded files "
        "that PAIR was exported from)"
    )
    parser.add_argument("--against-gguf", type=Path, action="append", default=[], metavar="FILE", help=about)
    about = "llama.cpp's program llama-server (default: the one on your PATH)"
    parser.add_argument("--llama-server", type=Path, metavar="PATH", help=about)
    about = (
        "onnxruntime,specdec runs every mode with ONNX Runtime's kernels and with ours, in turn; needs memory "
        "for two engines (default: what SPECDEC_KERNELS selects)"
    )
    parser.add_argument("--kernels", type=kernel_sets, metavar="A,B", help=about)
    _add_json(parser)
    _add_sampling(parser, max_new_tokens=BENCH_TOKENS)


def compare_arguments(parser: argparse.ArgumentParser) -> None:
    """PAIR, the devices, what to measure on them, and where the figures go."""
    _add_pair(parser)
    _add_draft(parser, user_path)
    about = (
        f"{', '.join(DEVICES[:-1])} or auto; cpu:1 means one thread, webgpu+cpu the target on WebGPU and the draft "
        "on the CPU (default: every device that this machine can use)"
    )
    parser.add_argument("--devices", metavar="A,B", help=about)
    about = "prompts of about this many tokens (default: 64, 256 and 1024, where the model's context allows)"
    parser.add_argument("--prompt-lengths", type=token_counts, metavar="N,N", help=about)
    _add_modes(parser, "modes to measure (default: plain,auto)", ["plain", "auto"])
    _add_number(parser, "--max-new-tokens", "length of an answer (default: %(default)s)", 48)
    _add_number(parser, "--repeat", "rounds over all devices (default: %(default)s)", 2)
    about = "stop a device after this many seconds in a round (default: 900)"
    parser.add_argument("--timeout", type=seconds, default=900.0, metavar="S", help=about)
    _add_json(parser)
    about = "write a page with charts that opens offline"
    parser.add_argument("--html", type=user_path, metavar="OUT", help=about)


def doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """PAIR, if one is to be examined, and how to run it."""
    _add_engine(parser, nargs="?")
    _add_switch(parser, "--json", "print the findings as JSON")


def demo_arguments(parser: argparse.ArgumentParser) -> None:
    """Which pair to show, and what to ask it."""
    _add_switch(parser, "--small", "use one small model that drafts from the text so far")
    about = "answer this instead of the built-in prompt"
    parser.add_argument("--prompt", type=text, metavar="TEXT", help=about)
    _add_number(parser, "--max-new-tokens", "length of the answer (default: %(default)s)", 256)
    _add_threads(parser)


Group = argparse.ArgumentParser | argparse._ArgumentGroup


def _add_switch(parser: Group, name: str, about: str) -> None:
    parser.add_argument(name, action="store_true", help=about)


def _add_number(parser: Group, name: str, about: str, default: int | None = None) -> None:
    parser.add_argument(name, type=int, default=default, metavar="N", help=about)


def _add_pair(parser: Group, nargs: str | None = None, more: str = "") -> None:
    about = f"a folder made by specdec-export, or the name of an exported pair{more}"
    parser.add_argument("pair", metavar="PAIR", nargs=nargs, help=about)


def _add_engine(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    """PAIR, and where and how to run it."""
    _add_pair(parser, nargs)
    group = parser.add_argument_group("engine")
    _add_draft(group, user_path)
    about = f"{', '.join(DEVICES[:-1])}, or auto to measure and take the fastest (default: %(default)s)"
    group.add_argument("--device", default="cpu", help=about)
    group.add_argument("--draft-device", metavar="DEVICE", help="the draft's device (default: the target's)")
    _add_threads(group)
    _add_context(group)
    _add_cache(group)


def _add_draft(parser: Group, kind: Callable[[str], str | Path]) -> None:
    about = "use this draft model instead of the pair's own"
    parser.add_argument("--draft", type=kind, metavar="FOLDER", help=about)


def _add_threads(parser: Group) -> None:
    _add_number(parser, "--threads", "threads per model; 0 means one per physical core (default)", 0)


def _add_context(parser: Group) -> None:
    about = "longest prompt and answer together, in tokens (default: the model's own limit, or less where memory is scarce)"
    _add_number(parser, "--context", about)


def _add_cache(parser: Group) -> None:
    about = "auto: keys and values in fp16 where specdec's own kernels run; fp32: in twice the memory (default: auto)"
    parser.add_argument("--cache", choices=CACHES, default="auto", help=about)


def _add_modes(parser: Group, about: str, default: list[str] | None = None) -> None:
    parser.add_argument("--modes", type=mode_list, default=default, metavar="A,B", help=about)


def _add_json(parser: Group) -> None:
    about = "write the figures to this file, or to stdout if OUT is -"
    parser.add_argument("--json", type=user_text, metavar="OUT", help=about)


def _add_sampling(parser: argparse.ArgumentParser, max_new_tokens: int | str) -> None:
    """The fields of `Parameters`; one that is not given is left out of the result."""
    group = parser.add_argument_group("sampling", argument_default=argparse.SUPPRESS)
    for name, number in NUMBERS.items():
        metavar, flag = "N" if number.kind is int else "X", f"--{name.replace('_', '-')}"
        group.add_argument(flag, type=number.kind, metavar=metavar, help=number.help.format(max_new_tokens))
    about = "end the answer before this text (repeatable)"
    group.add_argument("--stop", action="append", type=text, metavar="TEXT", help=about)


def _add_grammar(parser: argparse.ArgumentParser) -> None:
    """What the answer must look like: one of three ways to say it."""
    group = parser.add_argument_group("form of the answer").add_mutually_exclusive_group()
    about = "answer with JSON that fits this schema: a file, or the schema itself"
    group.add_argument("--json-schema", type=text, metavar="FILE|TEXT", help=about)
    about = "answer with text that this regular expression matches"
    group.add_argument("--regex", type=text, metavar="PATTERN", help=about)
    about = "answer with text of the Lark grammar in this file"
    group.add_argument("--grammar", type=user_path, metavar="FILE", help=about)


def text(word: str) -> str:
    """An argument that is text, in every locale."""
    if not any("\ud800" <= letter <= "\udfff" for letter in word):
        return word
    try:
        return os.fsencode(word).decode()
    except UnicodeError as error:
        raise argparse.ArgumentTypeError("it is not UTF-8 text") from error


def user_text(word: str) -> str:
    """A path as text, in which a leading ~ is the user's home."""
    return str(user_path(word))


def listed(word: str, what: str = "", known: Collection[str] = ()) -> list[str]:
    """What a list with commas holds, without the blanks around each; if some are `known`, only these may be in it."""
    names = [part.strip() for part in word.split(",")]
    if known and (unknown := set(names) - set(known)):
        raise argparse.ArgumentTypeError(f"unknown {what} {min(unknown)!r} (choose from {', '.join(known)})")
    return names


def mode_list(word: str) -> list[str]:
    """A list of modes; plain comes first, because the others are compared with it."""
    return list(dict.fromkeys(["plain", *listed(word, "mode", MODES)]))


def kernel_sets(word: str) -> list[str]:
    """A list of kernel sets; ours come first, because the others are compared with them."""
    names = listed(word, "kernels", KERNEL_SETS)
    return [name for name in KERNEL_SETS if name in names]


def token_counts(word: str) -> tuple[int, ...]:
    """A list of numbers above 0, in ascending order."""
    if not all(number.isdecimal() and int(number) for number in listed(word)):
        raise argparse.ArgumentTypeError(f"{word!r} is not a list of token counts")
    return tuple(sorted({int(number) for number in listed(word)}))


def seconds(word: str) -> float:
    """A time that a timer can wait."""
    if not 0 < float(word) <= TIMEOUT_MAX:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of seconds above 0")
    return float(word)


def positive(flag: str, value: int | None) -> None:
    """Raise SpecdecError for a count below 1."""
    if value is not None and value < 1:
        raise SpecdecError(f"{flag} must be at least 1, not {value}")
