"""Descriptions of sources and sinks of Apache Kafka. They open no connection."""

from firesteel.connectors.kafka.connection import KafkaConnection
from firesteel.connectors.kafka.formats import (
    Avro,
    Canal,
    Confluent,
    Csv,
    Debezium,
    Json,
    Protobuf,
    Raw,
    SchemaRegistry,
)
from firesteel.connectors.kafka.offsets import KafkaOffsets
from firesteel.connectors.kafka.sink import KafkaSink
from firesteel.connectors.kafka.source import UNREADABLE_TAG, DeadLetter, KafkaSource

__all__ = [
    "UNREADABLE_TAG",
    "Avro",
    "Canal",
    "Confluent",
    "Csv",
    "DeadLetter",
    "Debezium",
    "Json",
    "KafkaConnection",
    "KafkaOffsets",
    "KafkaSink",
    "KafkaSource",
    "Protobuf",
    "Raw",
    "SchemaRegistry",
]
