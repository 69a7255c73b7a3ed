"""Decodes records of Kafka into rows.

A decoder runs inside the source, on the task's thread, between fetching and emitting: the source
needs the rows' event times to keep a watermark for each partition.
"""

from taskexecutor.executor.connectors.kafka.decoders.decoder import Bad, Decoded, Decoder
from taskexecutor.executor.connectors.kafka.decoders.formats import decoded_schema, decoder

__all__ = ["Bad", "Decoded", "Decoder", "decoded_schema", "decoder"]
