"""The slot's Spark: its JVM and session, the transfer of rows, and the operators that run on it."""
