"""Run a target and its draft: decoding, proposing, verifying, planning."""
