"""Runs bundles of rows through plans, in the fastest way for each."""
