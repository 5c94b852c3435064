"""One module for each `specdec` command."""
