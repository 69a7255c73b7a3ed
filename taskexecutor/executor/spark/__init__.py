"""The slot's Spark: its JVM and session, the ways in and out of it, and the operators that run on
it.
"""
