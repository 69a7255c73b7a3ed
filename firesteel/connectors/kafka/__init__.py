"""Descriptions of sources and sinks of Apache Kafka. They open no connection."""

from firesteel.connectors.kafka.connection import KafkaConnection
from firesteel.connectors.kafka.offsets import KafkaOffsets

__all__ = ["KafkaConnection", "KafkaOffsets"]
