"""Adapters (LoRA) of models: checked, registered, asked for by name."""
