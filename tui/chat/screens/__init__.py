"""Full screens and dialogs of the chat."""
