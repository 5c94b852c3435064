"""Counters of the server, in Prometheus's text format."""

from collections import defaultdict
from threading import Lock

from specdec_onnx.runtime.generate import Statistics

_HELP = {
    "specdec_requests_total": "Requests by path and status.",
    "specdec_prompt_tokens_total": "Tokens of prompts.",
    "specdec_cached_prompt_tokens_total": "Tokens of prompts that did not have to be read.",
    "specdec_completion_tokens_total": "Tokens of answers.",
    "specdec_drafted_tokens_total": "Drafted tokens.",
    "specdec_accepted_tokens_total": "Drafted tokens that were accepted.",
    "specdec_prefill_seconds_total": "Seconds spent on reading prompts.",
    "specdec_decode_seconds_total": "Seconds spent on writing answers.",
    "specdec_cancelled_total": "Answers that ended because their client had gone.",
}


class Metrics:
    """Counts what the server did; any thread may count."""

    def __init__(self) -> None:
        self._lock, self._counts = Lock(), defaultdict[tuple[str, str], float](float)

    def count(self, name: str, amount: float = 1, **labels: object) -> None:
        """Add to the counter `specdec_NAME_total`."""
        pairs = ",".join(f'{key}="{value}"' for key, value in labels.items())
        with self._lock:
            self._counts[f"specdec_{name}_total", pairs] += amount

    def count_answer(self, statistics: Statistics) -> None:
        """Add one answer's figures."""
        self.count("prompt_tokens", statistics.prompt_tokens)
        self.count("cached_prompt_tokens", statistics.cached_prompt_tokens)
        self.count("completion_tokens", statistics.new_tokens)
        self.count("drafted_tokens", statistics.drafted)
        self.count("accepted_tokens", statistics.accepted)
        self.count("prefill_seconds", statistics.prefill_seconds)
        self.count("decode_seconds", statistics.decode_seconds)

    def as_text(self, waiting: int) -> str:
        """Every counter, and how many requests are under way."""
        with self._lock:
            counts = dict(self._counts)
        lines = []
        for name, about in _HELP.items():
            lines += [f"# HELP {name} {about}", f"# TYPE {name} counter"]
            found = {pairs: count for (each, pairs), count in counts.items() if each == name}
            for pairs, count in sorted((found or {"": 0}).items()):
                lines.append(f"{name}{{{pairs}}} {count:g}" if pairs else f"{name} {count:g}")
        name = "specdec_requests_under_way"
        lines += [f"# HELP {name} Requests that are being answered or wait for it.", f"# TYPE {name} gauge"]
        return "\n".join([*lines, f"{name} {waiting}", ""])
