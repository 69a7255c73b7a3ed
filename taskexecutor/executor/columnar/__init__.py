"""The columnar engine: reads and computes columns with Spark, with Arrow or with its own code."""
