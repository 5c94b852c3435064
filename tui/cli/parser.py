"""An argument parser that takes options and words in any order."""

import argparse
import copy
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from specdec_onnx.models.command import CommandParser
from specdec_onnx.models.text import printable

_NO_OPTION = re.compile(r"^[^=]*\s|^-(\d+|\d*\.\d+)(e[+-]?\d+)?$", re.IGNORECASE)
"""Words that begin with a dash without being options: text with spaces, negative numbers."""


class Parser(CommandParser):
    """Takes options and words in any order; every option may be left out.

    A value may begin with a dash, unless it is an option itself. What comes after `--` is never an option.
    """

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:
        """Parse the options first, then the words between and after them."""
        words = list(sys.argv[1:] if args is None else args)
        if any(action.nargs == argparse.PARSER for action in self._actions):
            return super().parse_known_args(words, namespace)  # the command's own parser takes the rest
        end = words.index("--") if "--" in words else len(words)
        marked, dashed = self._marked(words[:end])
        options = argparse.ArgumentParser.parse_known_args
        namespace, rest = options(self._without_words(), marked, namespace)
        unknown = [word for word in rest if word[0:1] == "-" and word != "-"]
        given = [dashed.get(word, word) for word in rest if word not in unknown] + words[end + 1 :]
        namespace, extra = super().parse_known_args(["--", *given] if given else [], namespace)
        return namespace, unknown + [word for word in extra if word != "--"]

    def error(self, message: str) -> NoReturn:
        """Print the usage and what is wrong, and exit."""
        super().error(printable(message))

    def _without_words(self) -> "Parser":
        """The same parser with its options only; usage and help stay complete."""
        bare = copy.copy(self)
        options = [action for action in self._actions if action.option_strings]
        vars(bare).update(_actions=options, format_usage=self.format_usage, format_help=self.format_help)
        return bare

    def _marked(self, words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
        """`words` rewritten for argparse, which takes too much for options, and the words that marks stand for.

        `--stop ---` becomes `--stop=---`; negative numbers and dashed text with spaces become marks.
        """
        marked: list[str] = []
        dashed: dict[str, str] = {}
        for word in words:
            if word[:1] != "-" or word == "-" or word.partition("=")[0] in self._option_string_actions:
                marked.append(word)
            elif self._awaits_value(marked):
                marked[-1] += f"={word}"
            elif _NO_OPTION.search(word):
                marked.append(f"\0{len(dashed)}")  # no argument holds a NUL
                dashed[marked[-1]] = word
            else:
                marked.append(word)
        return marked, dashed

    def _awaits_value(self, words: Sequence[str]) -> bool:
        """Whether the last of `words` is an option (or the beginning of one) that still needs its value."""
        name = words[-1] if words and words[-1][:2] == "--" else "\0"
        meant = [action for known, action in self._option_string_actions.items() if known.startswith(name)]
        return bool(meant) and all(action.nargs is None for action in meant)
