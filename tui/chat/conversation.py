"""The open conversation: the branch on the screen, and the changes a user can make to it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specdec_onnx.tui.chat.history.store import Conversation, Store, Turn, deleted_elsewhere
from specdec_onnx.tui.chat.session import Message, Request
from specdec_onnx.tui.chat.settings import Settings

TITLE_LENGTH = 60
UNTITLED = "New conversation"


@dataclass(slots=True)
class OpenConversation:
    """Nothing is stored before the first question, so looking around leaves no empty conversations."""

    store: Store
    settings: Settings = field(default_factory=Settings)
    model: str = ""
    stored: Conversation | None = None
    line: list[Turn] = field(default_factory=list)

    @classmethod
    def load(cls, store: Store, name: str) -> "OpenConversation | None":
        """Open a stored conversation at its head."""
        if (stored := store.conversation(name)) is None:
            return None
        settings = Settings.from_dict(stored.settings)
        return cls(store, settings, stored.model, stored, store.branch(stored.head))

    @property
    def title(self) -> str:
        """What the history list shows."""
        return self.stored.title if self.stored else UNTITLED

    @property
    def head(self) -> Turn | None:
        """The last turn of the shown branch."""
        return self.line[-1] if self.line else None

    def reload(self) -> None:
        """Read the shown branch again."""
        if self.stored is not None:
            self.stored = self.store.conversation(self.stored.id)
        self.line = self.store.branch(self.stored.head) if self.stored else []

    def ask(self, text: str) -> Turn:
        """Add a question and an empty answer; the result is the answer."""
        name = self._ensure_stored(text).id
        asked = self.store.add(name, self.head.id if self.head else None, "user", text)
        return self._answer(asked)

    def again(self, answer: Turn) -> Turn:
        """Add a new answer beside `answer`."""
        question = self.store.turn(answer.parent) if answer.parent is not None else None
        if question is None:
            raise deleted_elsewhere()
        return self._answer(question)

    def edit(self, question: Turn, text: str) -> Turn:
        """Ask the changed question beside the old one; the result is its empty answer."""
        return self._answer(self.store.add(question.conversation, question.parent, "user", text))

    def remove(self, turn: Turn) -> None:
        """Delete a turn and what followed it on this branch."""
        self.store.delete_turn(turn)
        self.reload()

    def switch(self, turn: Turn, offset: int) -> bool:
        """Show the branch before or after the one through `turn`."""
        moved = self.store.switch(turn, offset)
        self.reload()
        return moved

    def version(self, turn: Turn) -> tuple[int, int]:
        """(its number among its siblings, from 1; how many there are)."""
        versions = self.store.siblings(turn)
        return (versions.index(turn.id) + 1, len(versions)) if turn.id in versions else (1, 1)

    def configure(self, settings: Settings, model: str) -> None:
        """Set what this conversation runs with."""
        self.settings, self.model = settings, model
        if self.stored is not None:
            self.store.configure(self.stored.id, model, settings.as_dict())

    def rename(self, title: str) -> None:
        """Change the title."""
        if self.stored is not None and title.strip():
            self.store.rename(self.stored.id, title.strip())
            self.stored = self.store.conversation(self.stored.id)

    @property
    def mode(self) -> str:
        """How the next answer is decoded."""
        return "auto" if self.settings.speculate else "plain"

    def request(self, answer: Turn, partial: str = "") -> Request:
        """What the engine needs to write `answer`, from `partial` on."""
        line = messages(self.settings.system, self.store.branch(answer.parent))
        return Request(line, self.settings, self.mode, partial, answer.conversation)

    def _answer(self, question: Turn) -> Turn:
        answer = self.store.add(question.conversation, question.id, "assistant")
        self.reload()
        return answer

    def _ensure_stored(self, first: str) -> Conversation:
        if self.stored is None:
            self.stored = self.store.create(title_of(first), self.model, self.settings.as_dict())
        return self.stored


def messages(system: str, line: Sequence[Turn]) -> list[Message]:
    """Chat messages of a branch; where an answer has no text, the questions around it become one."""
    branch: list[Message] = [{"role": "system", "content": system}] if system.strip() else []
    for turn in line:
        if branch and turn.text and branch[-1]["role"] == turn.role:
            branch[-1]["content"] += f"\n\n{turn.text}"
        elif turn.text:
            branch.append({"role": turn.role, "content": turn.text})
    return branch


def title_of(question: str) -> str:
    """A title from a question: its first line, cut at a word."""
    line = next((part.strip() for part in question.splitlines() if part.strip()), UNTITLED)
    if len(line) <= TITLE_LENGTH:
        return line
    return line[:TITLE_LENGTH].rsplit(" ", 1)[0].rstrip(",.;:") + "…"
