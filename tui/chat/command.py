"""`specdec chat`: the chat in the terminal, or with --serve in a browser."""

import argparse
import shlex
import sys
from functools import partial

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.system import require_free

PORTS = range(1, 65536)


def run(args: argparse.Namespace) -> int:
    """Run the chat until the user quits."""
    if args.port not in PORTS:
        raise SpecdecError(
            f"there is no port {args.port}", fix=f"choose a --port from {PORTS[0]} to {PORTS[-1]}"
        )
    return _serve(args) if args.serve else _chat(args)


def _chat(args: argparse.Namespace) -> int:
    from specdec_onnx.models.pair import locate
    from specdec_onnx.tui.chat.app import ChatApp
    from specdec_onnx.tui.chat.engine_client import open_process
    from specdec_onnx.tui.chat.services import Services
    from specdec_onnx.tui.prepare import prepare_pair

    if not (sys.stdin.isatty() and sys.stderr.isatty()) and not _inside_server():
        raise SpecdecError(
            "there is no terminal to chat in", fix='specdec run PAIR "your prompt" works in pipes'
        )
    pairs = [] if args.pair is None else [locate(args.pair)]
    options = {"threads": args.threads, "context": args.context, "cache": args.cache}
    opener = partial(open_process, draft=args.draft, **options)
    services = Services.start(opener, prepare_pair)
    services.extra_pairs = pairs
    app = ChatApp(services, device=args.device, open_latest=args.latest)
    app.run()
    return app.return_code or 0


def _inside_server() -> bool:
    """textual-serve talks to the app through pipes and sets a variable in its environment."""
    import os

    return bool(os.environ.get("TEXTUAL_DRIVER"))


def _serve(args: argparse.Namespace) -> int:
    try:
        from textual_serve.server import Server
    except ImportError as error:
        raise SpecdecError(
            "--serve needs the package textual-serve", str(error), "pip install 'specdec-onnx[tui]'"
        ) from error
    try:
        require_free(args.host, args.port)  # the server itself notices only after it has told its address
        Server(inner_command(args), host=args.host, port=args.port, title="specdec chat").serve()
    except OSError as error:
        raise SpecdecError(
            f"the chat can't be served at {args.host}, port {args.port}",
            error.strerror or str(error),
            "choose another --port or --host",
        ) from error
    return 0


def inner_command(args: argparse.Namespace) -> str:
    """The command line that the server starts for each browser tab."""
    words = [
        sys.executable,
        "-m",
        "specdec_onnx.tui.cli.main",
        "chat",
        *([] if args.pair is None else [args.pair]),
    ]
    words += ["--device", args.device, "--threads", str(args.threads), "--cache", args.cache]
    words += ["--context", str(args.context)] if args.context else []
    words += ["--draft", args.draft] if args.draft else []
    words += ["--continue"] if args.latest else []
    return shlex.join(words)
