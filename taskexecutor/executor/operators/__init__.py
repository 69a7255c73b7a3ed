"""Operators that run in the task's thread on Arrow batches, and the registry of all operators."""
