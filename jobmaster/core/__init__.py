"""Decides everything about one job. No I/O and no clock."""
