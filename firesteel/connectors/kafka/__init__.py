"""Descriptions of sources and sinks of Apache Kafka. They open no connection."""

from firesteel.connectors.kafka.connection import KafkaConnection
from firesteel.connectors.kafka.offsets import KafkaOffsets
from firesteel.connectors.kafka.sink import KafkaSink
from firesteel.connectors.kafka.source import UNREADABLE_TAG, DeadLetter, KafkaSource

__all__ = [
    "UNREADABLE_TAG",
    "DeadLetter",
    "KafkaConnection",
    "KafkaOffsets",
    "KafkaSink",
    "KafkaSource",
]
