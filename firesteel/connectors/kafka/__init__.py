"""Descriptions of sources and sinks of Apache Kafka. They open no connection."""
