"""Bundles of rows that enter plans, by whichever way is the fastest for them."""
