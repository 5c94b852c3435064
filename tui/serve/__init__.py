"""The server: OpenAI's protocol over HTTP."""
