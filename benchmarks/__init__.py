"""`python -m benchmarks [NAME]`: what Firesteel costs; see `__main__.py`."""
