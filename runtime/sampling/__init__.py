"""From logits to tokens: what a user may set, distributions, and the rules of acceptance."""
