"""Serves complete partitions of BLOCKING results to consumers, over the same exchange as slots use.

Imported after the TaskExecutor has started its slots' processes, since Arrow is not needed earlier.
"""

from __future__ import annotations

import atexit
from pathlib import Path

from firesteel.common.ids import JobId
from firesteel.common.job_graph import ResultPartitionId
from taskexecutor.executor.exchange.blocking import ServedPartition
from taskexecutor.executor.exchange.partition import PartitionId
from taskexecutor.executor.exchange.registry import PartitionRegistry
from taskexecutor.executor.exchange.security import ExchangeSecurity
from taskexecutor.executor.exchange.server import ExchangeServer


class FlightResultServer:
    def __init__(
        self,
        host: str,
        *,
        window_bytes: int,
        batch_rows: int,
        security: ExchangeSecurity | None = None,
    ) -> None:
        self._window_bytes = window_bytes
        self._batch_rows = batch_rows
        # A consumer that is deployed with its producers may wait for hours; if they fail, the
        # JobMaster restarts it.
        self._registry = PartitionRegistry(timeout_s=None)
        self._server = ExchangeServer(self._registry, host, security)
        self.address: str = self._server.address
        atexit.register(self.stop)  # an interpreter that exits while Flight's threads run hangs

    def serve(self, job_id: JobId, partition: ResultPartitionId, path: Path) -> None:
        served = ServedPartition(
            _id(job_id, partition),
            path,
            window_bytes=self._window_bytes,
            batch_rows=self._batch_rows,
        )
        self._registry.add(served)

    def refuse(self, job_id: JobId, partition: ResultPartitionId, reason: str) -> None:
        """Fails current and later readers of the partition."""
        known = self._registry.refuse(_id(job_id, partition), reason)
        if known is not None:
            known.abort(reason)

    def forget_job(self, job_id: JobId) -> None:
        self._registry.forget_job(job_id)

    def stop(self) -> None:
        atexit.unregister(self.stop)
        for partition in self._registry.partitions():
            partition.abort("its TaskExecutor is shutting down")
        self._registry.close()
        self._server.stop()


def _id(job_id: JobId, partition: ResultPartitionId) -> PartitionId:
    return PartitionId(job_id, partition.result_id, partition.producer, partition.attempt)
