"""llama-server in processes of its own: JSON lines in and out as in `genai_worker`, HTTP on loopback to the servers.

Each mode has its own server, because speculation is set by its options. The end of the input ends them all, at any time.
"""

import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TextIO

from specdec_onnx.models.system import available_memory
from specdec_onnx.tui.child import errors_file, first_line, say, serve, why_ended

HOST = "127.0.0.1"
START_SECONDS, SILENT_SECONDS, ASK_SECONDS = 300.0, 300.0, 30.0
"""How long a server may load its models, how long it may say nothing during an answer, and take for a small request."""

MEMORY_SHARE = 1.5
"""Memory that a server takes for each byte of its models' files: they are mapped, rearranged in part, and there are caches."""

SHORT = ("4", "8")
"""Tokens that `ngram-short` looks up and drafts; the program's own default is made for long repetitions."""


def _serve(messages: Iterator[Mapping[str, Any]], channel: TextIO) -> None:
    request, prompts = next(messages), SimpleQueue[Mapping[str, Any]]()
    server, draft = request["server"], request["draft"]
    known = _says(server, "--help")
    modes = settings(known, draft)
    weights = sum(Path(file).stat().st_size for file in (request["target"], draft) if file)
    servers = Servers([server, *options(request, known)], modes, weights)
    Thread(target=_listen, args=(messages, prompts, servers), daemon=True).start()
    try:
        for mode in modes:
            servers.running(mode).check(request["probe"])
        say(channel, {"version": _version(server), "modes": modes})
        while True:
            prompt = prompts.get()
            most = prompt["max_length"] - len(prompt["tokens"])
            say(channel, servers.running(prompt["mode"]).answer(prompt["tokens"], most, prompt["again"]))
    finally:
        servers.close()


def _listen(
    messages: Iterator[Mapping[str, Any]], prompts: "SimpleQueue[Mapping[str, Any]]", servers: "Servers"
) -> None:
    """Take in messages; at the end of the input end the servers and this process, also during an answer."""
    for message in messages:
        prompts.put(message)
    servers.close()
    os._exit(0)


def options(request: Mapping[str, Any], known: str) -> list[str]:
    """The options that all modes share: the processor only, one answer at a time, as many threads as the engine."""
    threads, context = str(request["threads"]), str(request["context"])
    own = ["-m", request["target"], "-t", threads, "-c", context, "-np", "1", "-ngl", "0", "--no-webui"]
    own += ["--device", "none"] if "--device" in known else []
    own += ["--cache-ram", "0"] if "--cache-ram" in known else []  # it would save caches between answers
    return own


def settings(known: str, draft: str | None) -> dict[str, list[str]]:
    """The ways to speculate that this build has, judging by its help text, with their options."""
    listed = re.search(r"--spec-type\s+(\S+)", known)
    types = re.split(r"[^\w-]+", listed[1]) if listed else []
    modes: dict[str, list[str]] = {"plain": []}
    if "ngram-simple" in types:
        prefix = "--spec-ngram-simple-size" if "--spec-ngram-simple-size-n" in known else "--spec-ngram-size"
        modes["ngram"] = ["--spec-type", "ngram-simple"]
        modes["ngram-short"] = [*modes["ngram"], f"{prefix}-n", SHORT[0], f"{prefix}-m", SHORT[1]]
    if draft:
        modes["draft"] = ["-md", draft, "-ngld", "0"]
        modes["draft"] += ["--device-draft", "none"] if "--device-draft" in known else []
        modes["draft"] += ["--spec-type", "draft-simple"] if "draft-simple" in types else []
    return modes


def _says(server: str, option: str) -> str:
    """What the program prints for --help or --version."""
    done = subprocess.run(
        [server, option],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=ASK_SECONDS,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{server} {option}: {(done.stdout.strip() or 'it failed').splitlines()[-1]}")
    return done.stdout


def _version(server: str) -> str:
    found = re.search(r"version:\s*(.+)", _says(server, "--version"))
    return found[1].strip() if found else "of unknown version"


class Servers:
    """The running servers, one a mode. If memory is short, those that were used longest ago are ended for a new one."""

    def __init__(self, command: Sequence[str], modes: Mapping[str, Sequence[str]], weights: int) -> None:
        """How servers are started, and how many bytes of models each loads."""
        self._command, self._modes, self._weights = command, modes, weights
        self._lock, self._closed = Lock(), False
        self._running: dict[str, Server] = {}

    def running(self, mode: str) -> "Server":
        """The server of `mode`, started if it isn't running."""
        with self._lock:
            if self._closed:
                raise RuntimeError("the input has ended")
            server = self._running.pop(mode, None)
            while server is None and self._running and self._memory_is_short():
                self._running.pop(next(iter(self._running))).close()
            server = self._running[mode] = server or Server([*self._command, *self._modes[mode]])
        server.wait()
        return server

    def _memory_is_short(self) -> bool:
        free = available_memory()
        return free is not None and free < MEMORY_SHARE * self._weights

    def close(self) -> None:
        """End all servers; none starts any more."""
        with self._lock:
            self._closed = True
            while self._running:
                self._running.popitem()[1].close()


class Server:
    """One llama-server. Its errors are RuntimeErrors that say why it ended."""

    def __init__(self, command: Sequence[str]) -> None:
        self._log, self._port, self._ready = errors_file(), _free_port(), False
        self._drafts = "-md" in command
        # LLAMA_ARG_... would change its settings, and Ctrl-C is ours to handle.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LLAMA_")}
        self._process = subprocess.Popen(
            [*command, "--host", HOST, "--port", str(self._port)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=environment,
            start_new_session=True,
        )

    def wait(self) -> None:
        """Wait until the models are loaded."""
        limit = time.monotonic() + START_SECONDS
        while not self._ready:
            if self._process.poll() is not None:
                raise RuntimeError(self._last_words())
            if time.monotonic() > limit:
                raise RuntimeError(f"it was not ready after {START_SECONDS:.0f} seconds")
            self._ready = self._healthy()
            time.sleep(0.0 if self._ready else 0.05)

    def check(self, probe: Mapping[str, Any]) -> None:
        """Raise unless its models are those of the pair: the same ids for the probe's text, and a draft that it uses."""
        with self._post("/tokenize", {"content": probe["text"], "add_special": False}) as response:
            if json.load(response)["tokens"] != probe["tokens"]:
                raise RuntimeError("the GGUF file has another vocabulary than the pair")
        refused = self._first_line("failed to initialize speculative")
        if self._drafts and refused:  # it would go on without the draft
            raise RuntimeError(refused)

    def answer(self, tokens: Sequence[int], most: int, again: bool) -> dict[str, Any]:
        """One greedy answer: its tokens, its times, and what speculation did; `again` with what is in its cache.

        The prompt's and the answer's time are the server's own figures, the first token's is when it came here.
        """
        request = {
            "prompt": list(tokens),
            "n_predict": most,
            "temperature": 0,
            "cache_prompt": again,
            "return_tokens": True,
            "stream": True,
        }
        answer, first, start = list[int](), 0.0, time.perf_counter()
        with self._post("/completion", request) as response:
            for event in _events(response):
                first = first or time.perf_counter() - start
                answer += event["tokens"]
        times = event["timings"]
        accepted = times.get("draft_n_accepted", 0)
        return {
            "tokens": answer,
            "new_tokens": times["predicted_n"],  # tokens that end inside a character are not streamed
            "prefill_seconds": times["prompt_ms"] / 1e3,
            "first_token_seconds": first,
            "decode_seconds": times["predicted_ms"] / 1e3,
            "rounds": times["predicted_n"] - accepted,
            "drafted": times.get("draft_n", 0),
            "accepted": accepted,
        }

    def _healthy(self) -> bool:
        try:
            with closing(self._open("GET", "/health", None, ASK_SECONDS)) as response:
                return response.status == 200
        except (OSError, HTTPException):
            return False

    @contextmanager
    def _post(self, path: str, content: Mapping[str, Any]) -> Iterator[HTTPResponse]:
        """The response to a request, which may be streamed."""
        try:
            with closing(self._open("POST", path, json.dumps(content), SILENT_SECONDS)) as response:
                if response.status != 200:
                    raise RuntimeError(f"{path}: {response.read().decode(errors='replace')[:300]}")
                yield response
        except (OSError, HTTPException) as error:
            raise RuntimeError(self._trouble(error)) from error

    def _open(self, method: str, path: str, body: str | None, seconds: float) -> HTTPResponse:
        connection = HTTPConnection(HOST, self._port, timeout=seconds)
        connection.request(method, path, body, {"Content-Type": "application/json", "Connection": "close"})
        return connection.getresponse()  # the response keeps the socket open

    def _trouble(self, error: Exception) -> str:
        """Why a request failed: if the server has ended, what it said."""
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            return first_line(error)
        return self._last_words()

    def _last_words(self) -> str:
        code = self._process.wait()
        return (code > 0 and self._first_line(" E ", "error")) or why_ended(self._log, code)

    def _first_line(self, *marks: str) -> str:
        """The first line of its log with one of these marks, without time and level; "" if there is none."""
        self._log.seek(0)
        lines = self._log.read().splitlines()  # to the end, where the server goes on writing
        found = (line for line in lines if any(mark in line for mark in marks))
        return re.sub(r"^[\d.]+ E ", "", next(found, "")).strip()

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        self._log.close()


def _events(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    """The parts of a streamed answer; the last one holds the timings."""
    for line in response:
        if line.startswith(b"data: {"):
            event = json.loads(line.removeprefix(b"data: "))
            if "error" in event:
                raise RuntimeError(str(event["error"]))
            yield event
            if event["stop"]:
                return
    raise HTTPException("the answer was cut off")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    serve(_serve)
