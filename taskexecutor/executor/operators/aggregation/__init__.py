"""Aggregation: partial results by key, how they merge, and the operator without windows."""
