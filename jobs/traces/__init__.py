"""What a collector of traces is told of a job's life: spans, made from rows after the fact."""
