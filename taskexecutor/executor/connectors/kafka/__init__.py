"""Kafka in a slot: reading topics, and writing to them. Clients are imported on first use."""
