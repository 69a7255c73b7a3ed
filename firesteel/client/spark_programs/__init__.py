"""The program's side of Spark Connect: PySpark programs that `firesteel run` runs unmodified."""
