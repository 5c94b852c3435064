"""`specdec serve`: a pair for every client that speaks OpenAI's protocol."""

import argparse
import sys
from pathlib import Path

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.system import prefix_folder, require_free
from specdec_onnx.tui.cli.engine import load_engine, parameters

DRAIN_SECONDS = 30
"""How long the answers under way may take when the server is asked to end."""


def run(args: argparse.Namespace) -> int:
    """Load the pair, then serve it until the process is asked to end; answers under way are finished."""
    try:
        import uvicorn

        from specdec_onnx.tui.serve.app import LOOPBACK, Guard, make_app
    except ModuleNotFoundError as error:
        if str(error.name).startswith("specdec_onnx"):
            raise
        fix = "pip install 'specdec-onnx[server]'"
        raise SpecdecError(
            "specdec serve needs a web server", f"the package {error.name} is not installed", fix
        ) from error

    is_local = args.host in LOOPBACK
    if not is_local and not args.api_key:
        raise SpecdecError(
            f"--host {args.host} needs --api-key",
            "without a key anybody in the network could use the model",
            "choose a key, and give it to your clients too",
        )
    _require_free(args.host, args.port)
    parameters(args)  # refuses wrong ones before a pair is loaded
    engine = load_engine(args, prefix_folder=prefix_folder())
    defaults = parameters(args, max_new_tokens=engine.context)
    name = args.name or Path(args.pair).name
    guard = Guard(args.api_key or "", args.cors or (), any_host=not is_local)
    app = make_app(engine, name, defaults, guard=guard, queue=args.queue)
    print(f"{name} at http://{args.host}:{args.port}/v1 (Ctrl-C ends it)", file=sys.stderr, flush=True)
    uvicorn.run(
        app,
        host=args.host,
        port=args.port,
        http="h11",  # the strictest of uvicorn's readers
        ws="none",
        log_level="warning",
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    return 0


def _require_free(host: str, port: int) -> None:
    """Raise SpecdecError if the server could not listen there, before a pair is loaded for seconds."""
    try:
        require_free(host, port)
    except (OSError, OverflowError) as error:
        raise SpecdecError(
            f"cannot listen on {host}:{port}", str(error), "choose another --port or --host"
        ) from error
