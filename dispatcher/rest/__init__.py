"""Flink's REST API, served next to the Dispatcher."""
