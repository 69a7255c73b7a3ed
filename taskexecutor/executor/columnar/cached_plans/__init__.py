"""Spark plans of fused operators: composition, observation, and caching for many runs."""
