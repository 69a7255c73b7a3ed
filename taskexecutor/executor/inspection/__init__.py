"""Inspections of the slot's tasks, carried out in separate threads."""
