"""Arrow batches as Python objects for functions of the program, and their results as batches."""
