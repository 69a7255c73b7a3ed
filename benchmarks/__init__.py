"""Benchmarks of Firesteel, `python -m benchmarks [NAME]`: see `__main__.py`."""
