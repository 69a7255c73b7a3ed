"""Decides about the slots of one machine, the processes in them and their tasks. No I/O, no clock."""
