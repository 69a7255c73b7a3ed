"""Encodes rows as keys and values of Kafka's records."""

from taskexecutor.executor.connectors.kafka.encoders.encoder import Encoder
from taskexecutor.executor.connectors.kafka.encoders.formats import encoder

__all__ = ["Encoder", "encoder"]
