"""Defects made on purpose, each with the tests that convict it. `make mutants` makes them, one by
one, in a copy of the tree.
"""
