"""Nexmark: auctions, bids and persons, and queries about them.

The queries are those of https://github.com/nexmark/nexmark. PyFlink's environment lacks our
packages, so `run_flink` and its imports do not use Firesteel.
"""
