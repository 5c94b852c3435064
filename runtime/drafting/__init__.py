"""Drafting: what may come next, by the text so far, by a draft model, or by both."""
