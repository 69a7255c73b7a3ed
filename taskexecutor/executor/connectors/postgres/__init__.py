"""PostgresSink in a slot."""
