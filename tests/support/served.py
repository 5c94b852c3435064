"""A server on a tiny pair, in a thread of the tests' process."""

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import httpx
import pytest
import uvicorn
from support.tiny import export_tiny_pair

from specdec_onnx.runtime.engine import Engine, load
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.tui.serve.app import Guard, make_app

TEMPLATE = """{%- if tools %}<|im_start|>system
Tools: {{ tools | tojson }}<|im_end|>
{% endif -%}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


class Served(NamedTuple):
    """An engine behind an address."""

    engine: Engine
    url: str

    def figures(self) -> dict[str, float]:
        """Every counter of `/metrics` by name and labels."""
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def send(self, body: dict[str, Any]) -> socket.socket:
        """A connection on which a chat was requested, and nothing read yet."""
        content = json.dumps(body).encode()
        host, port = self.url.removeprefix("http://").split(":")
        client = socket.create_connection((host, int(port)))
        lines = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        client.sendall(lines.encode() + content)
        return client


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder: Path = export_tiny_pair(
        tmp_path_factory.mktemp("served") / "tiny", seed=5, target_sizes={"max_position_embeddings": 2048}
    )
    for part in (folder, folder / "target", folder / "draft"):
        (part / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return load(folder)


@pytest.fixture(scope="session")
def served(engine: Engine) -> Iterator[Served]:
    yield from serving(engine)


def serving(engine: Engine, guard: Guard | None = None, queue: int = 32) -> Iterator[Served]:
    """Serve in a thread until the generator is closed."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        app = make_app(engine, "tiny", Parameters(max_new_tokens=engine.context), guard=guard, queue=queue)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
        thread = Thread(target=server.run, args=([listener],))
        thread.start()
        url = f"http://127.0.0.1:{port}"
        with httpx.Client(transport=httpx.HTTPTransport(retries=20)) as client:
            while client.get(f"{url}/health").status_code != 200:
                pass
        try:
            yield Served(engine, url)
        finally:
            server.should_exit = True
            thread.join()
