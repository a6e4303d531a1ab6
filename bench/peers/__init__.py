"""What people use today, written honestly and small; each gets its prompts as token ids, counted before."""
