"""OpenAI's responses over HTTP."""
