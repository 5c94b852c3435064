"""What one answer cost and what speculation brought."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Statistics:
    """Counts and seconds of one run; rates are derived, so that runs can be added up."""

    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    new_tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    accepted_by_source: dict[str, int] = field(default_factory=dict)
    drafted_by_source: dict[str, int] = field(default_factory=dict)
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    first_token_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0

    def observe(self, sources: list[str], accepted: int) -> None:
        """Count one round that drafted `len(sources)` tokens, of which the first `accepted` were kept."""
        self.rounds += 1
        self.drafted += len(sources)
        self.accepted += accepted
        for position, source in enumerate(sources):
            if position == len(self.drafted_by_position):
                self.drafted_by_position.append(0)
                self.accepted_by_position.append(0)
            kept = position < accepted
            self.drafted_by_position[position] += 1
            self.accepted_by_position[position] += kept
            self.drafted_by_source[source] = self.drafted_by_source.get(source, 0) + 1
            self.accepted_by_source[source] = self.accepted_by_source.get(source, 0) + kept

    @property
    def decode_tokens_per_second(self) -> float:
        """New tokens per second, prefill left out."""
        return self.new_tokens / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def time_to_first_token_ms(self) -> float:
        """Milliseconds from the call to the first token, prefill included."""
        return 1e3 * self.first_token_seconds

    @property
    def tokens_per_round(self) -> float:
        """Tokens that one target pass yields, its own token included."""
        return self.new_tokens / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of the drafted tokens; 0 when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def host_seconds(self) -> float:
        """Decoding time spent outside the two sessions."""
        return max(0.0, self.decode_seconds - self.draft_seconds - self.verify_seconds)

    def as_dict(self) -> dict[str, Any]:
        """Every count and rate, ready for JSON."""
        counts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return counts | {
            "decode_tokens_per_second": round(self.decode_tokens_per_second, 3),
            "time_to_first_token_ms": round(self.time_to_first_token_ms, 3),
            "tokens_per_round": round(self.tokens_per_round, 4),
            "acceptance_rate": round(self.acceptance_rate, 4),
            "host_seconds": self.host_seconds,
        }
