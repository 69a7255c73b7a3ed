"""The same work on Firesteel, Spark Structured Streaming and Flink: see `rows`.

PyFlink's environment lacks our packages, so nothing is imported here.
"""
