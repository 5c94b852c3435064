"""Why speculation is off, or brought nothing: the sentence a reader would otherwise go looking for."""

from collections.abc import Mapping, Sequence
from typing import Any

WARMED_UP = 24


def why_plain(speculate: bool, modes: Sequence[str]) -> str:
    """The reason that holds before any token, or an empty text while speculation is on."""
    if not speculate:
        return "speculation off: F4 turns it on"
    if set(modes) <= {"plain"}:
        return "speculation off: this model decodes plainly only"
    return ""


def why_nothing_drafted(statistics: Mapping[str, Any], modes: Sequence[str]) -> str:
    """The reason why an answer that ran with speculation on shows no drafts."""
    if statistics.get("mode") == "plain" or statistics.get("new_tokens", 0) < WARMED_UP:
        return ""
    if statistics.get("drafted", 0):
        return (
            ""
            if statistics.get("accepted", 0)
            else "every draft was rejected; the answer is the target's own"
        )
    if "draft" not in modes:
        return "nothing was drafted: there is no draft model, and the text repeats nothing so far"
    return "nothing was drafted: at the measured costs plain steps are faster here"


def limits(modes: Sequence[str]) -> str:
    """What speculation can't use here, though it is on."""
    return "no draft model: drafts come from the text so far" if modes and "draft" not in modes else ""
