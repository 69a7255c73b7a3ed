"""Windows: which rows belong to which window, when it fires, and what it holds."""
