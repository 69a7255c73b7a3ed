"""Checkpoints of one job: participants, acknowledgements, completion and retention (spec 000, spec
001). A pure core.
"""
