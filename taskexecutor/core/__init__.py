"""Decides about the slots of one machine. Does no I/O and reads no clock."""
