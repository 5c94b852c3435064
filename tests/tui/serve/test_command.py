"""`specdec serve` as a process: it says where it is, and finishes what it has begun."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.served import Served


class Process:
    """A running `specdec serve`."""

    def __init__(self, pair: Path, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "specdec_onnx.tui.cli.main",
            "serve",
            str(pair),
            "--port",
            str(self.port),
        ]
        environment = os.environ | {"SPECDEC_API_KEY": ""}
        self.process = subprocess.Popen(
            [*command, *options], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.url = f"http://127.0.0.1:{self.port}"
        end = time.monotonic() + 60
        while True:
            assert time.monotonic() < end and self.process.poll() is None
            try:
                httpx.get(f"{self.url}/health")
                return
            except httpx.TransportError:
                time.sleep(0.05)


@pytest.fixture
def process(served: Served) -> Iterator[Process]:
    running = Process(served.engine.pair.path, "--name", "mine", "--temperature", "0")
    yield running
    running.process.kill()
    running.process.wait()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 0)])
def test_answers_under_way_are_finished(process: Process, number: int, code: int) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 150, "stream": True}
    texts, events = "", 0
    with httpx.stream("POST", f"{process.url}/v1/chat/completions", json=body, timeout=60) as response:
        for line in response.iter_lines():
            texts += line
            events += line.startswith("data: {")
            if events == 3:
                process.process.send_signal(number)
    assert "data: [DONE]" in texts
    _, said = process.process.communicate(timeout=60)
    assert process.process.returncode == code
    assert f"mine at {process.url}/v1" in said and "Traceback" not in said


def test_the_name_is_what_clients_see(process: Process) -> None:
    assert httpx.get(f"{process.url}/v1/models").json()["data"][0]["id"] == "mine"
    wrong = {"model": "other", "messages": [{"role": "user", "content": "x"}]}
    response = httpx.post(f"{process.url}/v1/chat/completions", content=json.dumps(wrong))
    assert response.status_code == 404 and "'mine'" in response.json()["error"]["message"]
