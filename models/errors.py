"""The one kind of error that reaches a user."""


class SpecdecError(Exception):
    """What happened, why, and what to do; every command prints it and exits with code 2."""

    def __init__(self, what: str, why: str = "", fix: str = "") -> None:
        super().__init__(what, why, fix)
        self.what, self.why, self.fix = what, why, fix

    def __str__(self) -> str:
        lines = [
            self.what,
            f"  why: {self.why}" if self.why else "",
            f"  try: {self.fix}" if self.fix else "",
        ]
        return "\n".join(line for line in lines if line)
