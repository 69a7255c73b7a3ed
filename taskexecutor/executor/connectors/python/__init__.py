"""PythonSource and PythonSink in a slot: the classes of PySpark's Python DataSource."""
