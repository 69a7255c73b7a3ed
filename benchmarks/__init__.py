"""`python -m benchmarks [NAME]`: what Firesteel costs, measured; see `__main__.py`."""
