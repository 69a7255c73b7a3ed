"""Partitions of BLOCKING results: written completely before any consumer reads them.

The producer's task writes a file (`BlockingPartition`): chunks of Arrow IPC, each with one
consumer's rows, followed by the index of the chunks (`partition_file`). Rows are buffered by
consumer; whenever the buffer is full, a region is written, with one or more chunks for each
consumer that has rows. So the file is written in one pass with bounded memory, and a consumer reads
its chunks region by region. A result that fits in the buffer is written at the end, into shared
memory if there is room.

The TaskExecutor takes over the file with the task's last report, and serves it (`ServedPartition`)
over the exchange's protocol, any number of times. Every chunk is verified against its checksum.
Files contain no watermarks except the last one, which ends event time.
"""

from taskexecutor.executor.exchange.blocking.partition import BlockingPartition, ResultFolders
from taskexecutor.executor.exchange.blocking.served import ServedPartition

__all__ = ["BlockingPartition", "ResultFolders", "ServedPartition"]
