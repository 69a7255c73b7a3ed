"""The same PySpark program on Spark alone, with `local[2]`, and on two executors in slots."""
