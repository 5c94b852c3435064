"""Branches: turns that share a parent. Regenerate and edit make them; nothing is lost."""

from specdec_onnx.tui.history.records import Turn
from specdec_onnx.tui.history.store import Store, gone


def siblings(store: Store, turn: Turn) -> list[int]:
    """Ids of the turns that follow the same turn, oldest first; this one is among them unless it was deleted."""
    query = "SELECT id FROM turn WHERE conversation = ? AND parent IS ? AND role = ? ORDER BY id"
    return [row[0] for row in store.rows(query, turn.conversation, turn.parent, turn.role)]


def tip(store: Store, turn: int) -> int:
    """The newest leaf below a turn."""
    while found := store.rows("SELECT max(id) FROM turn WHERE parent = ?", turn)[0][0]:
        turn = found
    return turn


def switch(store: Store, turn: Turn, offset: int) -> bool:
    """Show the sibling `offset` places away, down to its newest leaf; False when there is none."""
    choices = siblings(store, turn)
    if turn.id not in choices:
        raise gone()
    place = choices.index(turn.id) + offset
    if not 0 <= place < len(choices):
        return False
    store.head(turn.conversation, tip(store, choices[place]))
    return True


def remove(store: Store, turn: Turn) -> None:
    """Delete a turn and all that followed it; the newest sibling, or else the parent, becomes the head."""
    with store.transaction():
        if not store.rows("DELETE FROM turn WHERE id = ? RETURNING id", turn.id):
            raise gone()
        left = siblings(store, turn)
        store.head(turn.conversation, tip(store, left[-1]) if left else turn.parent)
