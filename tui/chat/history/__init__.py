"""Conversations in SQLite: every turn, every branch."""
