"""Decides which slot serves which job, and which workers to start and stop. No I/O, no clock."""
