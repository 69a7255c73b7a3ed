"""The Dispatcher as a whole: its server, its stores and its shell.

The entry point and the simulation run the same object; what differs is its platform and its stores.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dispatcher.blob_store import BlobStore
from dispatcher.job_store import JobStore
from dispatcher.results import ResultStore
from dispatcher.servicer import DispatcherServicer
from dispatcher.shell import Shell
from firesteel._proto import dispatcher_pb2, dispatcher_pb2_grpc
from firesteel.common.config import Configuration, options
from firesteel.common.metrics import Registry
from firesteel.common.service.platform import SYSTEM, Platform


class Dispatcher:
    """Listens at `address` from its construction on, and answers while it runs.

    The job store is opened once the address is bound: a second Dispatcher at the same address fails
    without taking the store from the first.
    """

    def __init__(
        self,
        conf: Configuration,
        *,
        host: str,
        port: int,
        directory: Path,
        resource_manager: str,
        registry: Registry,
        host_label: str = "",
        log_path: Path | None = None,
        open_store: Callable[[], JobStore] | None = None,
        blobs: BlobStore | None = None,
        results: ResultStore | None = None,
        platform: Platform = SYSTEM,
    ) -> None:
        """`open_store` opens the store at `database.url`, or jobs.db in `directory`, if not given;
        `blobs` and `results` are in `directory`, if not given. `log_path`: of this process.
        """
        transport = platform.transport
        self._server = transport.server([dispatcher_pb2.DESCRIPTOR.services_by_name["Dispatcher"]])
        self.address = transport.bind(self._server, host, port)
        conf.get(options.PAYLOAD_LIMIT)  # a bad value fails the start, not the first submission
        url = conf.get(options.DATABASE_URL) or JobStore.sqlite_url(directory)
        self.store = open_store() if open_store is not None else JobStore(url)
        self.shell = Shell(
            conf=conf,
            address=self.address,
            resource_manager=resource_manager,
            store=self.store,
            blobs=blobs or BlobStore(directory / "blobs", conf.get(options.BLOB_LIMIT)),
            results=results or ResultStore(directory / "spool"),
            log_directory=directory / "logs",
            log_path=log_path,
            registry=registry,
            host=host_label,
            platform=platform,
        )
        dispatcher_pb2_grpc.add_DispatcherServicer_to_server(  # type: ignore[no-untyped-call]
            DispatcherServicer(self.shell), self._server
        )

    async def start(self) -> None:
        """From now on it answers."""
        await self.shell.prepare()
        await self._server.start()

    async def run(self) -> None:
        """Until `stop`, or until another Dispatcher takes over the job store (raises Fenced)."""
        try:
            await self.shell.run()
        finally:
            await self._server.stop(grace=0.5)
            await self.shell.close()
            self.store.close()

    def stop(self) -> None:
        self.shell.stop()
