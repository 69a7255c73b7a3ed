"""Decides about the slots of one machine. No I/O, no clock."""
