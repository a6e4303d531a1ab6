"""What runs send to the engine, some of it before their jobs are claimed."""
