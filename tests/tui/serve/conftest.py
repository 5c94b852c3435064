"""One engine and one server for all tests of this folder."""

from support.served import engine, served

__all__ = ["engine", "served"]
