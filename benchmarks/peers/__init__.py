"""Compares Firesteel with Spark Structured Streaming and Flink on the same work: see `rows`.

PyFlink's environment lacks Firesteel's packages, so nothing is imported here.
"""
