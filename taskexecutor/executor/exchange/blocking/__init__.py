"""Partitions of BLOCKING results: written whole before anybody reads them.

The producer's task writes a file (`BlockingPartition`): chunks of Arrow IPC, one consumer's rows
each, and behind them the index of the chunks (`partition_file`). Rows are buffered by consumer;
whenever the buffer is full, a region is written: a chunk or more for each consumer that has rows.
So one pass with bounded memory is enough, and a consumer reads its chunks of one region after the
other. What fits in the buffer is written at the end, into shared memory if there is room.

The TaskExecutor takes the file over with the task's last report, and serves it (`ServedPartition`)
over the exchange's protocol, as often as consumers ask. Every chunk is compared with its checksum.
Files have no watermarks but the last, which is that of the end.
"""

from taskexecutor.executor.exchange.blocking.partition import BlockingPartition, ResultFolders
from taskexecutor.executor.exchange.blocking.served import ServedPartition

__all__ = ["BlockingPartition", "ResultFolders", "ServedPartition"]
