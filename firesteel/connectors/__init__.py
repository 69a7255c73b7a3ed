"""Descriptions of sources and sinks for programs; the slots open them.

Pass sources to `Environment.from_source`, and sinks to `DataStream.sink_to`. Custom ones derive
from `Source` and `Sink`.
"""

from firesteel.connectors.collect_sink import CollectSink
from firesteel.connectors.discard_sink import DiscardSink
from firesteel.connectors.file_sink import FileSink
from firesteel.connectors.file_source import MALFORMED_TAG, FileSource
from firesteel.connectors.foreach_batch_sink import ForeachBatchSink, ForeachRowsSink
from firesteel.connectors.kafka import (
    UNREADABLE_TAG,
    DeadLetter,
    KafkaOffsets,
    KafkaSink,
    KafkaSource,
)
from firesteel.connectors.postgres_sink import PostgresSink
from firesteel.connectors.print_sink import PrintSink
from firesteel.connectors.python_sink import PythonSink
from firesteel.connectors.python_source import PythonSource
from firesteel.connectors.sequence_source import SequenceSource
from firesteel.connectors.sink import Committable, Committer, Sink, SinkWriter
from firesteel.connectors.socket_source import SocketSource
from firesteel.connectors.source import EndOfSplit, Position, Source, SourceReader, Split

__all__ = [
    "MALFORMED_TAG",
    "UNREADABLE_TAG",
    "CollectSink",
    "Committable",
    "Committer",
    "DeadLetter",
    "DiscardSink",
    "EndOfSplit",
    "FileSink",
    "FileSource",
    "ForeachBatchSink",
    "ForeachRowsSink",
    "KafkaOffsets",
    "KafkaSink",
    "KafkaSource",
    "Position",
    "PostgresSink",
    "PrintSink",
    "PythonSink",
    "PythonSource",
    "SequenceSource",
    "Sink",
    "SinkWriter",
    "SocketSource",
    "Source",
    "SourceReader",
    "Split",
]
