"""Spark plans: of fused operators, observed, and kept for many runs."""
