"""Answers by hundreds of schemas, over real llama.cpp."""
