"""Checkpoints of one job: which tasks take part, what they have acknowledged, what is complete and
what is kept (spec 000, spec 001). Pure.
"""
