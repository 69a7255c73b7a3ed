"""Nexmark's bids in a topic of Apache Kafka, on Firesteel and its peers.

PyFlink's environment lacks our packages, so `run_flink` and its imports do not use Firesteel.
"""
