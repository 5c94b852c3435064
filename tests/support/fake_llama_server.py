"""Stands in for llama-server where it isn't installed: the options and the part of its HTTP protocol that are documented.

The model's file is JSON: `answer` are the tokens of every answer, `speculative_answer` those of speculative modes; `caches` says
whether prompts may come from the cache; `die`
ends the process in the middle of an answer, `hang` keeps the models loading. Each start is written down in `starts`, each prompt in `asked`.
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

HELP = """
-m,    --model FNAME                    model path to load
--spec-type none,draft-simple,ngram-simple,ngram-mod
                                        comma-separated list of types of speculative decoding to use
--spec-ngram-simple-size-n N            length of lookup n-gram
-dev,  --device <dev1,dev2,..>          devices to use for offloading
"""
DRAFTS = 3


def main() -> None:
    if "--help" in sys.argv:
        print(HELP)
    elif "--version" in sys.argv:
        print("version: 1 (fake)\nbuilt for tests", file=sys.stderr)
    else:
        serve()


def serve() -> None:
    options = sys.argv[1:]
    model = Path(options[options.index("-m") + 1])
    try:
        Handler.content = json.loads(model.read_text())
    except ValueError:
        print("0.00 I loading\n0.01 E load_model: no GGUF file\n0.02 I cleaning up", file=sys.stderr)
        sys.exit(1)
    with (model.parent / "starts").open("a") as starts:
        print(json.dumps({"pid": os.getpid(), "options": options}), file=starts)
    Handler.folder = model.parent
    if Handler.content.get("hang"):
        time.sleep(60)
    Handler.speculates = "--spec-type" in options
    HTTPServer(("127.0.0.1", int(options[options.index("--port") + 1])), Handler).serve_forever()


class Handler(BaseHTTPRequestHandler):
    content: dict[str, Any]
    folder: Path
    speculates: bool

    def do_GET(self) -> None:
        self._send(json.dumps({"status": "ok"}))

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self._send(json.dumps({"tokens": self.content.get("probe", [1, 2, 3])}))
        else:
            self._complete(request)

    def _complete(self, request: dict[str, Any]) -> None:
        assert (
            request["temperature"] == 0
            and request["cache_prompt"] in self.content.get("caches", [False])
            and request["stream"]
        )
        assert all(isinstance(token, int) for token in request["prompt"])
        asked = {"cached": request["cache_prompt"], "tokens": request["prompt"]}
        with (self.folder / "asked").open("a") as file:
            print(json.dumps(asked), file=file)
        kind = "speculative_answer" if self.speculates and "speculative_answer" in self.content else "answer"
        answer = self.content[kind][: request["n_predict"]]
        parts = [{"content": "x", "tokens": [token], "stop": False} for token in answer]
        drafted = {"draft_n": DRAFTS, "draft_n_accepted": DRAFTS - 1} if self.speculates else {}
        timings = {"prompt_ms": 1e3, "predicted_n": len(answer), "predicted_ms": 500.0, **drafted}
        if "die" in self.content:
            print(f"0.03 E {self.content['die']}", file=sys.stderr, flush=True)
            self._send(f"data: {json.dumps(parts[0])}\n\n")
            os._exit(9)
        events = [*parts, {"content": "", "tokens": [], "stop": True, "timings": timings}]
        self._send("".join(f"data: {json.dumps(event)}\n\n" for event in events))

    def _send(self, body: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args: Any) -> None:
        pass


if __name__ == "__main__":
    main()
