"""Between text and token ids: prompts, chat templates, and answers read piece by piece."""
