"""SequenceSource in a slot: numbers made in Python, or generated in Spark."""
