"""Descriptions of sources and sinks of Apache Kafka. They open no connection."""

from firesteel.connectors.kafka.connection import KafkaConnection
from firesteel.connectors.kafka.offsets import KafkaOffsets
from firesteel.connectors.kafka.sink import KafkaSink

__all__ = ["KafkaConnection", "KafkaOffsets", "KafkaSink"]
