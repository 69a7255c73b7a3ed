"""The REST API of Flink 2.3: its routes, and jobs and clusters as they show them."""
