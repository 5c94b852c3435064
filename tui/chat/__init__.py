"""The chat: an app around one screen, its widgets, the conversations it keeps and the engine it talks to."""
