"""Weight formats: what each stores, and how weights are fitted to it."""
