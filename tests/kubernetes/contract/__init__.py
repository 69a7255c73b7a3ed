"""The behaviour that Firesteel relies on, checked against the API server of tests and, with `make
test-kubernetes`, against a real one.
"""
