"""Today's alternatives, written fairly and small; each gets its prompts as token ids, already tokenized."""
