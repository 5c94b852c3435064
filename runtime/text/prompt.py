"""From messages or plain text to the token ids that a model reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from specdec_onnx.models.errors import SpecdecError
from specdec_onnx.models.folder import ModelFolder
from specdec_onnx.models.tokenizer import Tokenizer, require_text
from specdec_onnx.runtime.text.provenance import Said, concat, mask
from specdec_onnx.runtime.text.template import Message, Tools, literal_text, render

_SPECIAL: WeakKeyDictionary[Tokenizer, dict[str, "_Special"]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Prompt:
    """The text that a model continues; a `raw` one gets a BOS token if the model's own tokenizer adds one.

    The text knows which of its characters come from messages (`provenance.mask`): special tokens spelled there are
    plain text.
    """

    text: str
    raw: bool = False


def chat_prompt(
    model: ModelFolder,
    messages: Sequence[Message],
    *,
    partial: str = "",
    tools: Tools = (),
    open_answer: bool = True,
) -> Prompt:
    """A conversation as the chat template formats it, then the answer so far; SpecdecError without a template."""
    return Prompt(concat((render(model, messages, tools=tools, open_answer=open_answer), Said(partial))))


def prompt_tokens(
    model: ModelFolder, text: str, *, system: str | None = None, raw: bool = False
) -> list[int]:
    """The token ids of a user's message, or of plain text if `raw` or the model has no chat template.

    Raises SpecdecError for a `system` prompt that no template formats.
    """
    if not raw and model.chat_template is not None:
        messages: list[Message] = [{"role": "system", "content": system}] if system else []
        return encode(model, chat_prompt(model, [*messages, {"role": "user", "content": text}]))
    if system:
        refuse_system(
            "a raw prompt goes to the model as it is" if raw else f"{model.name} has none: it is a base model"
        )
    return encode(model, Prompt(text, raw=True))


def refuse_system(why: str) -> None:
    """Raise the SpecdecError for a system prompt without a chat template."""
    raise SpecdecError("a system prompt needs a chat template", why, "put the instructions into the prompt")


def encode(model: ModelFolder, prompt: Prompt, start: int = 0) -> list[int]:
    """Ids of a prompt, or of what follows its first `start` characters."""
    text = prompt.text[start:]
    require_text(text, "the prompt")
    if start or 1 in mask(text):
        ids = _ids(model.tokenizer, text, _special_tokens(model, prompt.raw), follows=start > 0)
    else:
        ids = model.tokenizer.encode(text)
    opening = model.bos_token_id if prompt.raw and not start and model.adds_bos else None
    return ids if opening is None or ids[:1] == [opening] else [opening, *ids]


class _Special(NamedTuple):
    """Texts of the tokens that only a template may write, and one of them after which other text can be encoded."""

    control: Mapping[int, str]
    lead: str


def _special_tokens(model: ModelFolder, raw: bool) -> _Special:
    source = "" if raw else model.chat_template or ""
    known = _SPECIAL.setdefault(model.tokenizer, {})
    if source not in known:
        known[source] = _Special(_control_tokens(model.tokenizer, source), _lead(model.tokenizer))
    return known[source]


def _control_tokens(tokenizer: Tokenizer, template: str) -> dict[int, str]:
    """Ids and texts of the special tokens, and of other added tokens that the template writes."""
    written = literal_text(template)
    return {
        token: entry.content
        for token, entry in tokenizer.raw.get_added_tokens_decoder().items()
        if entry.special or entry.content in written
    }


def _lead(tokenizer: Tokenizer) -> str:
    """A special token after which text is not encoded like the beginning of a text; "" if there is none."""
    for token, entry in tokenizer.raw.get_added_tokens_decoder().items():
        if entry.special and not entry.rstrip and tokenizer.encoding(entry.content + "a").ids[0] == token:
            return str(entry.content)
    return ""


def _ids(tokenizer: Tokenizer, text: str, special: _Special, follows: bool) -> list[int]:
    """Ids of text, which `follows` other text or not; it is split inside each control token that a message spells."""
    found, characters, tokens = (
        _after_lead(tokenizer, text, special) if follows else (tokenizer.encoding(text), 0, 0)
    )
    cuts = _forged(tokenizer, text, special.control, found, characters)
    if not cuts:
        return list(found.ids[tokens:])
    ids = list[int]()
    for begin, end in pairwise([0, *cuts, len(text)]):
        ids += _ids(tokenizer, text[begin:end], special, follows or begin > 0)
    return ids


def _after_lead(tokenizer: Tokenizer, text: str, special: _Special) -> tuple[Any, int, int]:
    """The encoding of text with something before it, and how many characters and tokens that has."""
    for lead in filter(None, ("\n", special.lead)):
        alone, found = tokenizer.encoding(lead).ids, tokenizer.encoding(lead + text)
        size = len(alone)
        apart = len(found.ids) == size or found.token_to_chars(size)[0] >= len(lead)
        if found.ids[:size] == alone and apart:
            return found, len(lead), size
    return tokenizer.encoding(text), 0, 0


def _forged(tokenizer: Tokenizer, text: str, control: Mapping[int, str], found: Any, shift: int) -> list[int]:
    """Where to split `text` so that control tokens spelled by messages are plain text: after their first characters."""
    origin, cuts = mask(text), list[int]()
    if 1 not in origin:
        return cuts
    for index, token in enumerate(found.ids):
        if token not in control:
            continue
        begin, end = (max(0, place - shift) for place in found.token_to_chars(index))
        begin += len(text[begin:end]) - len(text[begin:end].lstrip())
        end = begin + len(text[begin:end].rstrip())
        if end - begin > 1 and 1 in origin[begin:end] and _spells(tokenizer, text[begin:end], control[token]):
            cuts.append(begin + 1)
    return cuts


def _spells(tokenizer: Tokenizer, text: str, token: str) -> bool:
    """Whether a piece of text spells a token, and is not merely unknown to the vocabulary."""
    rules = tokenizer.raw.normalizer
    return token in text or (rules is not None and rules.normalize_str(token) in rules.normalize_str(text))
