"""Who may use the server, and how much of it."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.served import Served, serving

from specdec_onnx.runtime.engine import Engine
from specdec_onnx.tui.cli.main import main
from specdec_onnx.tui.serve import app
from specdec_onnx.tui.serve.app import LARGEST_BODY, Guard

BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "the rain"}], "max_tokens": 4}
LONG = BODY | {"max_tokens": 1500, "logit_bias": {}}
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def keyed(engine: Engine) -> Iterator[Served]:
    guard = Guard("secret", ["http://app.example"], any_host=True)
    yield from serving(engine, guard)


@pytest.fixture(scope="module")
def narrow(engine: Engine) -> Iterator[Served]:
    """A server that takes two requests at a time."""
    yield from serving(engine, queue=2)


def post(served: Served, body: Any = BODY, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx.post(served.url + CHAT, content=content, headers=headers, timeout=30)


def message(response: httpx.Response) -> str:
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return str(error["message"])


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1]evil"]
)
def test_another_name_for_this_machine_is_refused(served: Served, host: str) -> None:
    """A page whose name was made to point here (DNS rebinding) sends its own name."""
    response = post(served, host=host)
    assert response.status_code == 403 and "localhost only" in message(response)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1234", "127.0.0.1:99", "[::1]:8080"])
def test_this_machines_own_names_are_fine(served: Served, host: str) -> None:
    assert post(served, host=host).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost.evil.example"])
def test_pages_of_other_origins_are_refused(served: Served, origin: str) -> None:
    assert post(served, origin=origin).status_code == 403


def test_a_page_of_a_listed_origin_may(keyed: Served) -> None:
    headers = {"origin": "http://app.example", "authorization": "Bearer secret"}
    response = post(keyed, **headers)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "http://app.example"
    asks = {"origin": "http://app.example", "access-control-request-method": "POST"}
    assert httpx.options(keyed.url + CHAT, headers=asks).status_code == 200
    assert post(keyed, **(headers | {"origin": "http://other.example"})).status_code == 403


@pytest.mark.parametrize("key", ["", "Bearer wrong", "Basic secret", "Bearer secretx", "Bearer \u00e4"])
def test_a_wrong_key_is_refused(keyed: Served, key: str) -> None:
    response = httpx.post(keyed.url + CHAT, json=BODY, headers={"authorization": key.encode("latin-1")})  # type: ignore[dict-item]
    assert response.status_code == 401 and response.headers["www-authenticate"] == "Bearer"
    assert httpx.get(f"{keyed.url}/metrics").status_code == 401
    assert httpx.get(f"{keyed.url}/health").status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"messages": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e400}',
        b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "x"}], "seed": ' + b"9" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": {"role": "user"}}',
        b'{"messages": [1]}',
        b'{"messages": [{"role": ["user"], "content": "x"}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "stop": 5}',
        b'{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"1": {}}}',
        b'{"messages": [{"role": "user", "content": "x"}], "tools": [{"function": {"name": 1}}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "stream": "yes"}',
    ],
)
def test_a_malformed_body_is_an_error_of_its_sender(served: Served, body: bytes) -> None:
    response = post(served, body)
    assert response.status_code == 400 and message(response)


def test_a_body_that_is_too_large_is_refused_while_it_comes(served: Served) -> None:
    response = post(served, b" " * (LARGEST_BODY + 1))
    assert response.status_code == 413 and "larger than 4 MB" in message(response)


@pytest.mark.parametrize(("path", "status"), [("/v1/chat", 404), ("/", 404), ("/v1/../../etc/passwd", 404)])
def test_other_paths_are_not_there(served: Served, path: str, status: int) -> None:
    response = httpx.get(served.url + path)
    assert response.status_code == status and message(response)


def test_the_wrong_method_is_said(served: Served) -> None:
    response = httpx.get(served.url + CHAT)
    assert response.status_code == 405 and "GET" in message(response)


def until(served: Served, count: int) -> None:
    end = time.monotonic() + 20
    while served.figures()["specdec_requests_under_way"] != count:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_the_engine(served: Served, stream: bool) -> None:
    with served.send(LONG | {"stream": stream}):
        until(served, 1)
    until(served, 0)
    assert served.engine.last.finish_reason == "cancelled"


def test_more_than_the_queue_holds_is_refused(narrow: Served) -> None:
    with narrow.send(LONG), narrow.send(LONG):
        until(narrow, 2)
        response = post(narrow)
        assert response.status_code == 429 and int(response.headers["retry-after"]) > 0
    until(narrow, 0)
    assert post(narrow).status_code == 200


def test_the_metrics_add_up(engine: Engine) -> None:
    for served in serving(engine):
        for _ in range(3):
            post(served)
        post(served, b"{")
        counts = served.figures()
        assert counts['specdec_requests_total{path="/v1/chat/completions",status="200"}'] == 3
        assert counts['specdec_requests_total{path="/v1/chat/completions",status="400"}'] == 1
        assert counts["specdec_completion_tokens_total"] == 12
        assert 0 < counts["specdec_cached_prompt_tokens_total"] < counts["specdec_prompt_tokens_total"]
        assert counts["specdec_requests_under_way"] == 0


def test_a_slow_reader_gets_all_of_it(served: Served) -> None:
    received = b""
    with served.send(BODY | {"stream": True, "max_tokens": 200}) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        while b"[DONE]" not in received:
            time.sleep(0.002)
            received += client.recv(256)
    assert b"200 OK" in received


def test_requests_of_many_threads_are_answered_alike(served: Served) -> None:
    texts: list[str] = []

    def ask() -> None:
        texts.append(post(served).json()["choices"][0]["message"]["content"])

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 12 and len(set(texts)) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "needs --api-key"),
        (["--host", "no.such.host.invalid", "--api-key", "k"], "cannot listen"),
        (["--port", "99999"], "cannot listen"),
        (["--temperature", "-1"], "temperature is -1"),
    ],
)
def test_what_cannot_be_served_is_an_error(
    tmp_path: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(tmp_path), *options]) == 2
    assert said in capsys.readouterr().err


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = [
    "messages",
    "prompt",
    "model",
    "stream",
    "stream_options",
    "n",
    "stop",
    "seed",
    "logit_bias",
    "logprobs",
]
FIELDS += [
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "top_logprobs",
    "response_format",
    "tools",
    "tool_choice",
]
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"]) | JSON, "content": JSON},
    optional={"tool_calls": JSON, "name": JSON},
)
FORMS = st.builds(lambda schema: {"type": "json_schema", "json_schema": {"schema": schema}}, JSON)
FUNCTIONS = st.builds(
    lambda name, schema: [{"type": "function", "function": {"name": name, "parameters": schema}}], JSON, JSON
)


@settings(max_examples=200, deadline=None)
@given(
    body=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3),
    more=st.fixed_dictionaries(
        {}, optional={"messages": st.lists(MESSAGE, max_size=3), "response_format": FORMS, "tools": FUNCTIONS}
    ),
    path=st.sampled_from([CHAT, "/v1/completions"]),
)
def test_no_body_makes_the_server_fail(
    served: Served, body: dict[str, Any], more: dict[str, Any], path: str
) -> None:
    whole = {"messages": BODY["messages"], "max_tokens": 2} | body | more
    if path != CHAT:
        whole = {"prompt": "x", "max_tokens": 2} | body
    response = httpx.post(
        served.url + path, content=json.dumps(whole).encode(errors="surrogatepass"), timeout=60
    )
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        assert message(response)


def sent(served: Served, head: str, content: bytes = b"{}") -> bytes:
    """What comes back for a request that no proper client writes."""
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(f"POST {CHAT} HTTP/1.1\r\n{head}Connection: close\r\n\r\n".encode() + content)
        return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.parametrize(
    "head",
    [
        "Host: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n",
        "Host: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n",
        "Host: evil.example\r\nHost: localhost\r\nContent-Length: 2\r\n",
        "Host: localhost\r\nOrigin: http://evil.example\r\nOrigin: http://localhost\r\nContent-Length: 2\r\n",
        "Host: localhost\r\nContent-Length : 2\r\n",
        "Host: localhost\r\nContent-Length: -2\r\n",
        "Host: localhost\r\nTransfer-Encoding: xchunked\r\n",
    ],
)
def test_headers_that_can_be_read_in_two_ways_are_refused(served: Served, head: str) -> None:
    chunked = b"2\r\n{}\r\n0\r\n\r\n" if "chunked" in head else b"{}"
    assert sent(served, head, chunked).startswith(b"HTTP/1.1 400")


def test_a_body_that_does_not_come_is_given_up(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BODY_SECONDS", 0.1)
    response = sent(served, "Host: localhost\r\nContent-Length: 9\r\n", b"{")
    assert response.startswith(b"HTTP/1.1 408") and b"within" in response


def test_a_long_prompt_does_not_keep_others_waiting(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it, and its grammar, is no work for the thread that serves all."""
    threads = set[str]()
    stream = served.engine.stream

    def noting(prompt: Any, **options: Any) -> Any:
        threads.add(threading.current_thread().name)
        return stream(prompt, **options)

    monkeypatch.setattr(served.engine, "stream", noting)
    assert post(served).status_code == 200
    assert {name.partition("_")[0] for name in threads} == {"opener"}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^((((a{1,50}){1,50}){1,50}){1,50})$"},
        {"type": "array", "items": {"type": "null"}, "minItems": 10**6},
        {"$ref": "#"},
        {"$ref": "file:///etc/passwd"},
        {"type": "string", "pattern": "^(?=a)(a|aa)*\\1$"},
    ],
)
def test_a_grammar_that_explodes_is_an_error_of_its_sender(served: Served, schema: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    begun = time.monotonic()
    response = post(served, BODY | {"response_format": form, "max_tokens": 40})
    assert response.status_code == 400 and time.monotonic() - begun < 5
    assert response.json()["error"]["param"] == "response_format"


def test_stop_strings_are_counted(served: Served) -> None:
    assert post(served, BODY | {"stop": ["a"] * 64}).status_code == 200
    response = post(served, BODY | {"stop": ["a"] * 65})
    assert response.status_code == 400 and response.json()["error"]["param"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_its_turn_is_not_answered(served: Served, stream: bool) -> None:
    before = served.figures()["specdec_cancelled_total"]
    with served.send(LONG | {"stream": True}):
        until(served, 1)
        with served.send(LONG | {"stream": stream}):
            until(served, 2)
    until(served, 0)
    assert served.figures()["specdec_cancelled_total"] == before + 2
