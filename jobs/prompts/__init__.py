"""Prompts: messages, chat templates, tokens, and prompts at rest."""
