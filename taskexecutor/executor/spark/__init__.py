"""The slot's Spark: its JVM and session, rows in and out, and the operators that run on it."""
