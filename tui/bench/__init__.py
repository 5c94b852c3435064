"""What `specdec bench` does: read prompts, measure modes, report."""
