"""What `scripts/bench` is made of: texts that are sent, servers that answer, the engine's limit, and the report."""
