"""What may come next: the draft model, the text so far, or both in turn."""
