"""The engine and the sampling parameters that a command's options describe."""

import argparse
import sys
from typing import Any

from specdec_onnx.models.pair import locate
from specdec_onnx.models.system import user_path
from specdec_onnx.runtime import engine
from specdec_onnx.runtime.sampling.constraint import Constraint
from specdec_onnx.runtime.sampling.parameters import NUMBERS, Parameters
from specdec_onnx.tui.cli.streams import read_text


def load_engine(args: argparse.Namespace, **options: Any) -> engine.Engine:
    """Open the pair that the options name; `options` are further arguments of `load`."""
    return engine.load(
        locate(args.pair),
        draft=args.draft,
        device=args.device,
        draft_device=args.draft_device,
        threads=args.threads,
        context=args.context,
        cache=args.cache,
        on_measure=say_measuring,
        **options,
    )


def say_measuring() -> None:
    """Explain why the first load of a pair takes longer."""
    print("measuring what a pass costs on this machine (the first time only)", file=sys.stderr)


def constraint(args: argparse.Namespace) -> Constraint | None:
    """What the options say about the form of the answer."""
    if args.json_schema is not None:
        schema = args.json_schema.strip()
        in_place = schema.startswith("{") or schema in ("true", "false")
        return Constraint.json_schema(schema if in_place else read_text(user_path(schema)))
    if args.regex is not None:
        return Constraint.regex(args.regex)
    return None if args.grammar is None else Constraint.lark(read_text(args.grammar))


def parameters(args: argparse.Namespace, **defaults: Any) -> Parameters:
    """The sampling options that were given, over the command's own defaults."""
    given = {name: value for name, value in vars(args).items() if name in NUMBERS}
    if stop := getattr(args, "stop", None):
        given["stop"] = tuple(stop)
    return Parameters(**(defaults | given))
