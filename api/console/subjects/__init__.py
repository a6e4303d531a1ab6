"""What pages of summaries, answers and other subjects, which are planned over documents, have in common."""
