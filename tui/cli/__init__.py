"""The `specdec` command: its arguments and streams, and the subcommands that fit in one module."""
