"""Readers of files: Spark's, whose plans are cached, and Arrow's."""
