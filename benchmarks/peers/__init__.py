"""The same work on Firesteel, Spark Structured Streaming and Flink: see `rows`. PyFlink's
environment has nothing of ours, so nothing is imported here.
"""
