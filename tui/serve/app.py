"""The HTTP application: OpenAI's paths, what guards them, and the shape of their responses."""

import asyncio
import hmac
import json
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from specdec_onnx.models.tokenizer import Tokenizer
from specdec_onnx.runtime.engine import Engine
from specdec_onnx.runtime.generate import Result, Step
from specdec_onnx.runtime.sampling.parameters import Parameters
from specdec_onnx.tui.serve.answers import RETRY_SECONDS, Answering, Answers, ClientGone
from specdec_onnx.tui.serve.metrics import Metrics
from specdec_onnx.tui.serve.protocol import Ask, Reader, Refused, read_json
from specdec_onnx.tui.serve.tool_calls import ToolCall, ToolCalls

LARGEST_BODY = 4 << 20
BODY_SECONDS = 60
"""How long a body may take to come."""

LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")
_OPEN_PATHS = ("/health",)
_ONCE = (b"host", b"origin", b"authorization", b"content-length")
_LENGTHS = {b"content-length", b"transfer-encoding"}
"""Headers that say in two ways where a body ends: a proxy in between may read another request than we do."""

_REASONS = {"eos": "stop", "stop": "stop", "length": "length", "context": "length"}


@dataclass(frozen=True, slots=True)
class Guard:
    """Who may use the server: with `key`, whoever knows it; without one, only this machine's own programs.

    A browser sends requests of any page to this machine too, and a page's own name may be made to point here. So
    requests under another name than this machine's, and those of pages that are not in `origins`, are refused.
    """

    key: str = ""
    origins: Collection[str] = ()
    any_host: bool = False

    def check(self, scope: Scope) -> None:
        """Raise Refused."""
        names = Counter(name for name, _ in scope["headers"])
        if any(names[name] > 1 for name in _ONCE) or names.keys() >= _LENGTHS:
            raise Refused("the headers contradict each other", code="ambiguous_headers")
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if not self.any_host and _host(headers.get(b"host", "")) not in LOOPBACK:
            raise Refused("this server answers to localhost only", status=403, code="host_not_allowed")
        origin = headers.get(b"origin")
        if origin is not None and not self._knows(origin, headers.get(b"host", "")):
            raise Refused(
                "pages of this origin may not use this server", status=403, code="origin_not_allowed"
            )
        if self.key and scope["path"] not in _OPEN_PATHS and scope["method"] != "OPTIONS":
            given = headers.get(b"authorization", "").removeprefix("Bearer ").encode()
            if not hmac.compare_digest(given, self.key.encode()):
                raise Refused("the API key is wrong or missing", status=401, code="invalid_api_key")

    def _knows(self, origin: str, host: str) -> bool:
        return (
            "*" in self.origins or origin in self.origins or origin in (f"http://{host}", f"https://{host}")
        )


class _Guarded:
    """Refuses requests before anything else sees them, and counts all."""

    def __init__(self, app: ASGIApp, guard: Guard, metrics: Metrics) -> None:
        self._app, self._guard, self._metrics = app, guard, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Any) -> None:
            if message["type"] == "http.response.start":
                path = scope["path"] if scope["path"] in PATHS else "other"
                self._metrics.count("requests", path=path, status=message["status"])
            await send(message)

        try:
            self._guard.check(scope)
        except Refused as refused:
            await _refusal(refused)(scope, receive, counted)
            return
        await self._app(scope, receive, counted)


class Server:
    """What the paths do."""

    def __init__(self, engine: Engine, name: str, defaults: Parameters, queue: int) -> None:
        self.metrics, self._started = Metrics(), int(time.time())
        self._answers = Answers(engine, self.metrics, queue)
        self._reader = Reader(name, engine.pair.target, defaults)
        self._tokenizer = engine.tokenizer
        self._name = name

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        return await self._answer(request, self._reader.chat, is_chat=True)

    async def completion(self, request: Request) -> Response:
        """POST /v1/completions."""
        return await self._answer(request, self._reader.completion, is_chat=False)

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""
        try:
            self._reader.check_model(request.path_params["name"])
        except Refused as refused:
            return _refusal(refused)
        return JSONResponse(self._model())

    async def health(self, request: Request) -> Response:
        """GET /health."""
        return JSONResponse({"status": "ok"})

    async def figures(self, request: Request) -> Response:
        """GET /metrics."""
        text = self.metrics.as_text(self._answers.under_way)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    def _model(self) -> dict[str, Any]:
        return {"id": self._name, "object": "model", "created": self._started, "owned_by": "specdec-onnx"}

    async def _answer(self, request: Request, read: Callable[[Any], Ask], *, is_chat: bool) -> Response:
        try:
            body = read_json(await _body(request))
            ask = await anyio.to_thread.run_sync(read, body)
            answering = await self._answers.begin(ask, request.is_disconnected)
            shape = _Shape(self._name, self._tokenizer, ask, is_chat=is_chat)
            if ask.stream:
                answering.stream()
                return StreamingResponse(_events(answering, shape), media_type="text/event-stream")
            return JSONResponse(await _whole(answering, shape))
        except Refused as refused:
            return _refusal(refused)
        except (ClientGone, ClientDisconnect):
            return Response(status_code=499)


PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/metrics")


def make_app(
    engine: Engine, name: str, defaults: Parameters, *, guard: Guard | None = None, queue: int = 32
) -> Starlette:
    """The application for one engine, which clients know by `name`."""
    guard = guard or Guard()
    server = Server(engine, name, defaults, queue)
    ours = [Middleware(_Guarded, guard, server.metrics)]
    if guard.origins:
        ours.append(
            Middleware(
                CORSMiddleware, allow_origins=list(guard.origins), allow_methods=["*"], allow_headers=["*"]
            )
        )
    chat, completion, models, health, metrics = PATHS
    routes = [
        Route(chat, server.chat, methods=["POST"]),
        Route(completion, server.completion, methods=["POST"]),
        Route(models, server.models),
        Route(f"{models}/{{name:path}}", server.model),
        Route(health, server.health),
        Route(metrics, server.figures),
    ]
    return Starlette(routes=routes, middleware=ours, exception_handlers={HTTPException: _http_error})


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = ", ".join(PATHS)
    about = {
        404: f"there is no {request.url.path:.80}; there are {known}",
        405: f"{request.method} is not possible",
    }
    return _refusal(Refused(about.get(error.status_code, error.detail), status=error.status_code))


def _refusal(refused: Refused) -> Response:
    headers: dict[str, str] = {"Retry-After": str(RETRY_SECONDS)} if refused.status == 429 else {}
    headers |= {"WWW-Authenticate": "Bearer"} if refused.status == 401 else {}
    return JSONResponse(refused.as_dict(), refused.status, headers)


def _host(header: str) -> str:
    """The name in a Host header, without its port."""
    name, _, port = header.rpartition(":")
    return (name if name and port.isdecimal() else header).lower()


async def _body(request: Request) -> bytes:
    content = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                content += chunk
                if len(content) > LARGEST_BODY:
                    message = f"the body is larger than {LARGEST_BODY >> 20} MB"
                    raise Refused(message, status=413, code="body_too_large")
    except TimeoutError as error:
        raise Refused(f"the body did not come within {BODY_SECONDS} seconds", status=408) from error
    return bytes(content)


class _Shape:
    """The JSON of one answer: whole, or in chunks."""

    def __init__(self, name: str, tokenizer: Tokenizer, ask: Ask, *, is_chat: bool) -> None:
        self._tokenizer, self.ask, self._is_chat = tokenizer, ask, is_chat
        self._calls, self._split = 0, ToolCalls([tool["function"]["name"] for tool in ask.tools])
        self._common: dict[str, Any] = {
            "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex[:24]}",
            "object": "chat.completion" if is_chat else "text_completion",
            "created": int(time.time()),
            "model": name,
        }

    def deltas(self, step: Step) -> Iterator[dict[str, Any]]:
        """What a step adds to the message: texts and calls."""
        parts: list[str | ToolCall] = [step.text] if step.text else []
        if self.ask.tools:
            parts = [*self._split.push(step.text), *(self._split.rest() if step.finish_reason else ())]
        for part in parts:
            if isinstance(part, ToolCall):
                function = {"name": part.name, "arguments": part.arguments}
                about = {"index": self._calls, "id": f"call_{uuid.uuid4().hex[:24]}", "type": "function"}
                self._calls += 1
                yield {"tool_calls": [about | {"function": function}]}
            elif part.strip() or not self._calls:
                yield {"content": part}

    def chunk(self, delta: dict[str, Any], step: Step | None, reason: str | None) -> dict[str, Any]:
        """A part of a streamed answer."""
        choice: dict[str, Any] = {"index": 0, "finish_reason": reason}
        choice |= {"delta": delta} if self._is_chat else {"text": delta.get("content", "")}
        if step is not None and self.ask.logprobs is not None:
            choice["logprobs"] = self._logprobs([step])
        kind = {"object": "chat.completion.chunk"} if self._is_chat else {}
        return self._common | kind | {"choices": [choice]}

    def usage_chunk(self, result: Result) -> dict[str, Any]:
        """The last chunk, if the client wants it."""
        return self.chunk({}, None, None) | {"choices": [], "usage": usage(result)}

    def reason(self, step: Step) -> str:
        """Why the answer ended, in OpenAI's words."""
        return "tool_calls" if self._calls else _REASONS.get(step.finish_reason or "", "stop")

    def whole(self, steps: Sequence[Step], result: Result) -> dict[str, Any]:
        """The answer in one piece."""
        deltas = [delta for step in steps for delta in self.deltas(step)]
        text = "".join(delta.get("content", "") for delta in deltas)
        calls = [
            {key: value for key, value in call.items() if key != "index"}
            for delta in deltas
            for call in delta.get("tool_calls", ())
        ]
        choice: dict[str, Any] = {"index": 0, "finish_reason": self.reason(steps[-1])}
        if self.ask.logprobs is not None:
            choice["logprobs"] = self._logprobs(steps)
        if self._is_chat:
            message = {"role": "assistant", "content": None if calls and not text.strip() else text}
            choice["message"] = message | ({"tool_calls": calls} if calls else {})
        else:
            choice["text"] = text
        return self._common | {"choices": [choice], "usage": usage(result)}

    def _logprobs(self, steps: Sequence[Step]) -> dict[str, Any]:
        found = [entry for step in steps for entry in step.logprobs]
        if not self._is_chat:
            tops = [{self._token(token)["token"]: value for token, value in entry.top} for entry in found]
            texts = [self._token(entry.token)["token"] for entry in found]
            return {
                "tokens": texts,
                "token_logprobs": [entry.logprob for entry in found],
                "top_logprobs": tops,
            }
        content = [
            self._token(entry.token)
            | {"logprob": entry.logprob}
            | {"top_logprobs": [self._token(token) | {"logprob": value} for token, value in entry.top]}
            for entry in found
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int) -> dict[str, Any]:
        text = self._tokenizer.decode([token], skip_special=False)
        return {"token": text, "bytes": list(text.encode())}


def usage(result: Result) -> dict[str, Any]:
    """The counts of an answer, those of speculation among them."""
    counts = result.statistics
    rejected = counts.drafted - counts.accepted
    return {
        "prompt_tokens": len(result.prompt),
        "completion_tokens": len(result.tokens),
        "total_tokens": len(result.prompt) + len(result.tokens),
        "prompt_tokens_details": {"cached_tokens": counts.cached_prompt_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": counts.accepted,
            "rejected_prediction_tokens": rejected,
        },
        "speculation": {
            "rounds": counts.rounds,
            "tokens_per_round": round(counts.tokens_per_round, 3),
            "acceptance_rate": round(counts.acceptance_rate, 3),
            "tokens_per_second": round(counts.decode_tokens_per_second, 2),
            "drafted_by_source": counts.drafted_by_source,
            "accepted_by_source": counts.accepted_by_source,
        },
    }


async def _whole(answering: Answering, shape: _Shape) -> dict[str, Any]:
    steps = [step async for step in answering.steps()]
    return shape.whole(steps, answering.result)


async def _events(answering: Answering, shape: _Shape) -> AsyncIterator[str]:
    """The answer as server-sent events; leaving in the middle ends it."""
    try:
        yield _event(shape.chunk({"role": "assistant", "content": ""}, None, None))
        async for step in answering.steps():
            for delta in shape.deltas(step):
                yield _event(shape.chunk(delta, None, None))
            if shape.ask.logprobs is not None and step.logprobs:
                yield _event(shape.chunk({}, step, None))
            if step.finish_reason:
                yield _event(shape.chunk({}, None, shape.reason(step)))
        if shape.ask.usage_at_end:
            yield _event(shape.usage_chunk(answering.result))
        yield "data: [DONE]\n\n"
    except Refused as refused:
        yield _event(refused.as_dict())
    finally:
        answering.cancel()


def _event(data: Any) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"
