"""Nexmark: auctions, their bids and the people behind them, and queries about them.

The queries are those of https://github.com/nexmark/nexmark. PyFlink's environment lacks our
packages, so `run_flink` and what it imports know nothing of Firesteel.
"""
