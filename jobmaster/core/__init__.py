"""Decides everything about one job. No I/O, no clock."""
