"""What clients may ask for: OpenAI's request bodies, read into what the engine takes, and its shape of errors."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self, TypeVar

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.runtime.sampling.constraint import Constraint
from specdec_onnx.runtime.sampling.parameters import NUMBERS, Parameters
from specdec_onnx.runtime.text.prompt import Prompt, chat_prompt, encode
from specdec_onnx.runtime.text.template import Message, knows_tools
from specdec_onnx.tui.serve.tool_calls import ANY_ARGUMENTS, call_grammar, free_grammar

Body = Mapping[str, Any]
Made = TypeVar("Made")

MOST_LOGPROBS = 20
_MOST_MESSAGES, _MOST_TOOLS, _MOST_STOPS = 10_000, 128, 64
_ROLES = {"developer": "system", "function": "tool"} | {
    role: role for role in ("system", "user", "assistant", "tool")
}
_SAMPLING = {*NUMBERS} - {"max_new_tokens"}
_IGNORED = {"user", "metadata", "store", "service_tier", "parallel_tool_calls", "prompt_cache_key"}
_IGNORED |= {"safety_identifier", "reasoning_effort", "verbosity"}
"""What changes nothing about an answer here, or only for OpenAI's own service."""

_SHARED = {"model", "stream", "stream_options", "n", "stop", "seed", "logit_bias", "logprobs", *_SAMPLING}
_CHAT = {"messages", "max_tokens", "max_completion_tokens", "top_logprobs", "response_format"}
_CHAT |= {"tools", "tool_choice"}
_COMPLETION = {"prompt", "max_tokens"}


class Refused(Exception):
    """A request that is answered with an error: `status` is HTTP's, `param` the field at fault."""

    def __init__(
        self, message: str, param: str | None = None, *, status: int = 400, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.param, self.status, self.code = message, param, status, code

    @classmethod
    def because(cls, error: SpecdecError, param: str | None = None, **more: Any) -> Self:
        """The refusal for an error that our code explains."""
        return cls(". ".join(filter(None, (error.what, error.why))), param, **more)

    @property
    def kind(self) -> str:
        """OpenAI's name for this kind of error."""
        named = {401: "authentication_error", 429: "rate_limit_error"}
        default = "server_error" if self.status >= 500 else "invalid_request_error"
        return named.get(self.status, default)

    def as_dict(self) -> dict[str, Any]:
        """OpenAI's shape of an error."""
        about = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": about}


@dataclass(frozen=True, slots=True)
class Ask:
    """A request, ready for the engine."""

    prompt: Prompt | list[int]
    parameters: Parameters
    stream: bool = False
    usage_at_end: bool = False
    logprobs: int | None = None
    constraint: Constraint | None = None
    guided_by: str = "response_format"
    """The field that the constraint comes from."""
    tools: Sequence[Mapping[str, Any]] = ()

    def tokens(self, model: ModelFolder) -> list[int]:
        """The ids that the model reads."""
        return self.prompt if isinstance(self.prompt, list) else encode(model, self.prompt)


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads requests for one model; what a request leaves out, it takes from `defaults`."""

    name: str
    model: ModelFolder
    defaults: Parameters = field(default_factory=Parameters)

    def chat(self, body: Body) -> Ask:
        """A request for `/v1/chat/completions`. Raises Refused."""
        _check_fields(body, _SHARED | _CHAT)
        messages, tools = _messages(body), _tools(body)
        choice = _tool_choice(body, tools)
        offered = () if choice == "none" else tools
        if offered and not knows_tools(self.model):
            raise Refused("this model's chat template knows no tools", "tools")
        constraint, guided_by = _response_format(body), "response_format"
        if choice not in ("none", "auto"):
            constraint, guided_by = _must_call(offered, choice), "tool_choice"
        elif offered and constraint is None:
            constraint, guided_by = _may_call(self.model, offered), "tools"
        limits = [_number(body, name, int) for name in ("max_completion_tokens", "max_tokens")]
        most = next((limit for limit in limits if limit is not None), None)
        logprobs = _logprobs(body)
        prompt = _ours(
            "messages",
            lambda: chat_prompt(self.model, messages, tools=[_described(tool) for tool in offered]),
        )
        guided = {"constraint": constraint, "guided_by": guided_by, "tools": offered}
        return self._ask(body, prompt, most, logprobs=logprobs, **guided)

    def completion(self, body: Body) -> Ask:
        """A request for `/v1/completions`. Raises Refused."""
        _check_fields(body, _SHARED | _COMPLETION)
        logprobs = _number(body, "logprobs", int)
        if logprobs is not None and not 0 <= logprobs <= MOST_LOGPROBS:
            raise Refused(f"logprobs must be from 0 to {MOST_LOGPROBS}", "logprobs")
        most = _number(body, "max_tokens", int)
        return self._ask(body, _prompt(body), 16 if most is None else most, logprobs=logprobs)

    def _ask(self, body: Body, prompt: Prompt | list[int], most: int | None, **more: Any) -> Ask:
        self.check_model(body.get("model", self.name))
        if _number(body, "n", int) not in (None, 1):
            raise Refused("only n = 1 is supported: ask again for another answer", "n")
        stream, options = _flag(body, "stream"), _section(body, "stream_options")
        if unknown := options.keys() - {"include_usage", "include_obfuscation"}:
            raise Refused(f"unknown option {min(unknown)!r}", "stream_options")
        if options and not stream:
            raise Refused("stream_options requires stream: true", "stream_options")
        return Ask(prompt, self._parameters(body, most), stream, _flag(options, "include_usage"), **more)

    def check_model(self, name: Any) -> None:
        """Raise Refused for any model but the one that there is."""
        if name != self.name:
            message = f"the model {name!r:.80} does not exist; this server has {self.name!r}"
            raise Refused(message, "model", status=404, code="model_not_found")

    def _parameters(self, body: Body, most: int | None) -> Parameters:
        parameters = self.defaults
        given: dict[str, Any] = {} if most is None else {"max_new_tokens": most}
        given |= {name: body[name] for name in _SAMPLING & body.keys() if body[name] is not None}
        if body.get("stop") is not None:
            given["stop"] = _stops(body["stop"])
        if body.get("logit_bias"):
            given["logit_bias"] = _biases(body["logit_bias"])
        limit = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
        for name, value in given.items():
            field_ = limit if name == "max_new_tokens" else name
            parameters = _ours(field_, partial(replace, parameters, **{name: value}))
        return parameters


def read_json(content: bytes) -> Body:
    """A request's body. Raises Refused."""
    try:
        body = json.loads(content)
    except RecursionError as error:
        raise Refused("the body is nested too deeply") from error
    except ValueError as error:
        raise Refused(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refused("the body must be a JSON object")
    return body


def _ours(param: str, make: Callable[[], Made]) -> Made:
    """What `make` makes; an error that our code explains becomes one about the field `param`."""
    try:
        return make()
    except SpecdecError as error:
        raise Refused.because(error, param) from error
    except (TypeError, ValueError, RecursionError, OverflowError) as error:
        raise Refused(f"{param} is invalid", param) from error


def _check_fields(body: Body, known: set[str]) -> None:
    for name, value in body.items():
        if name not in known | _IGNORED and value is not None:
            raise Refused(f"{name!r:.80} is not supported", str(name)[:80], code="unsupported_parameter")


def _number(body: Body, name: str, kind: type) -> Any:
    value = body.get(name)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise Refused(f"{name} must be a number", name)
    return value


def _flag(body: Body, name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise Refused(f"{name} must be true or false", name)
    return bool(value)


def _section(body: Body, name: str) -> Body:
    value = body.get(name) or {}
    if not isinstance(value, dict):
        raise Refused(f"{name} must be an object", name)
    return value


def _list(body: Body, name: str, most: int) -> list[dict[str, Any]]:
    value = body.get(name) or []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise Refused(f"{name} must be a list of objects", name)
    if len(value) > most:
        raise Refused(f"{name} has more than {most} entries", name)
    return value


def _biases(given: Any) -> dict[int, float]:
    if not isinstance(given, dict) or not all(
        str(token).isdecimal() and len(str(token)) < 12 for token in given
    ):
        raise Refused("logit_bias must map token ids to numbers", "logit_bias")
    return {int(token): bias for token, bias in given.items()}


def _stops(given: Any) -> Any:
    """Each is looked for in every piece of text, so there is a limit."""
    if isinstance(given, list) and len(given) > _MOST_STOPS:
        raise Refused(f"stop has more than {_MOST_STOPS} entries", "stop")
    return given


def _logprobs(body: Body) -> int | None:
    top = _number(body, "top_logprobs", int)
    if not _flag(body, "logprobs"):
        if top:
            raise Refused("top_logprobs requires logprobs: true", "top_logprobs")
        return None
    if top is not None and not 0 <= top <= MOST_LOGPROBS:
        raise Refused(f"top_logprobs must be from 0 to {MOST_LOGPROBS}", "top_logprobs")
    return top or 0


def _prompt(body: Body) -> Prompt | list[int]:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return Prompt(prompt, raw=True)
    if isinstance(prompt, list) and all(
        isinstance(token, int) and not isinstance(token, bool) for token in prompt
    ):
        return prompt
    raise Refused("prompt must be one text, or the ids of one", "prompt")


def _messages(body: Body) -> list[Message]:
    messages = _list(body, "messages", _MOST_MESSAGES)
    if not messages:
        raise Refused("messages must have at least one message", "messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(given: Mapping[str, Any], where: str) -> Message:
    role = _ROLES.get(str(given.get("role")))
    if role is None:
        raise Refused(f"{where}.role must be one of {', '.join(_ROLES)}", f"{where}.role")
    message: Message = {"role": role, "content": _content(given.get("content"), f"{where}.content")}
    if role == "assistant" and given.get("tool_calls"):
        calls = _list(given, "tool_calls", _MOST_TOOLS)
        message["tool_calls"] = [_call(call, f"{where}.tool_calls") for call in calls]
    elif given.get("content") is None:
        raise Refused(f"{where}.content is missing", f"{where}.content")
    return message | {name: str(given[name]) for name in ("name", "tool_call_id") if given.get(name)}


def _content(content: Any, where: str) -> str:
    if isinstance(content, list):
        parts = [
            part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
            for part in content
        ]
        if all(isinstance(part, str) for part in parts):
            return "".join(map(str, parts))
        raise Refused("only parts of type text are supported", where)
    if content is None or isinstance(content, str):
        return content or ""
    raise Refused(f"{where} must be a text or a list of text parts", where)


def _call(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A call as chat templates expect it: with its arguments as data."""
    function = given.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Refused(f"{where} needs function.name", where)
    arguments = function.get("arguments") or "{}"
    try:
        data = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError) as error:
        raise Refused(f"{where}: the arguments are not JSON", where) from error
    return {
        "id": str(given.get("id", "")),
        "type": "function",
        "function": {"name": function["name"], "arguments": data},
    }


def _tools(body: Body) -> list[dict[str, Any]]:
    tools = _list(body, "tools", _MOST_TOOLS)
    for index, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type", "function") != "function" or not isinstance(function, dict):
            raise Refused("only tools of type function are supported", f"tools[{index}]")
        name, parameters = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or not name or not isinstance(parameters, (dict, type(None))):
            raise Refused(
                "a function needs a name, and its parameters are a schema", f"tools[{index}].function"
            )
    return tools


def _described(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": dict(tool["function"])}


def _tool_choice(body: Body, tools: Sequence[Mapping[str, Any]]) -> str:
    """ "none", "auto", "required", or the name of the one function to call after a colon."""
    choice = body.get("tool_choice") or ("auto" if tools else "none")
    if isinstance(choice, dict) and isinstance(choice.get("function"), dict):
        choice = f":{choice['function'].get('name')}"
    names = {f":{tool['function']['name']}" for tool in tools}
    if choice not in ("none", "auto", "required", *names) or (choice != "none" and not tools):
        raise Refused("tool_choice must be none, auto, required, or name one of the tools", "tool_choice")
    return str(choice)


def _must_call(tools: Sequence[Mapping[str, Any]], choice: str) -> Constraint:
    """One call: of any of the tools, or of the chosen one."""
    functions = [tool["function"] for tool in tools]
    chosen = [each for each in functions if choice == "required" or choice == f":{each['name']}"]
    return _ours("tool_choice", lambda: Constraint.lark(call_grammar(chosen)))


def _may_call(model: ModelFolder, tools: Sequence[Mapping[str, Any]]) -> Constraint | None:
    """Free text with calls as the tools' schemas say; None without the package that follows grammars.

    A schema that cannot be followed leaves its tool's arguments free; if the tool is `strict`, it is refused.
    """
    functions = [_loosened(tool["function"]) for tool in tools]
    with suppress(SpecdecError):
        return Constraint.lark(free_grammar(model, functions))
    return None


def _loosened(function: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        Constraint.json_schema(function.get("parameters") or ANY_ARGUMENTS)
    except SpecdecError as error:
        if function.get("strict"):
            raise Refused.because(error, "tools") from error
        return {**function, "parameters": ANY_ARGUMENTS}
    return function


def _response_format(body: Body) -> Constraint | None:
    wanted = _section(body, "response_format")
    kind = wanted.get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return _constraint("response_format", Constraint.json_schema, {"type": "object"})
    described = wanted.get("json_schema")
    if (
        kind != "json_schema"
        or not isinstance(described, dict)
        or not isinstance(described.get("schema"), dict)
    ):
        message = "response_format must be text, json_object, or json_schema with a schema"
        raise Refused(message, "response_format")
    return _constraint("response_format", Constraint.json_schema, described["schema"])


def _constraint(param: str, make: Callable[[Any], Constraint], given: Any) -> Constraint:
    return _ours(param, lambda: make(given))
