"""The complete Dispatcher: its server, its stores and its shell.

The entry point and the simulation run the same object with a different platform and stores.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor

from dispatcher.access import AccessServicer
from dispatcher.audit import AuditLog
from dispatcher.blob_store import BlobStore
from dispatcher.chunk_copies import ChunkCopies
from dispatcher.job_store import JobStore
from dispatcher.results import ResultStore
from dispatcher.servicer import DispatcherServicer
from dispatcher.shared_storage import BLOBS, SPOOL, SharedStorage
from dispatcher.shell import Shell
from firesteel._proto import access_pb2, access_pb2_grpc, dispatcher_pb2, dispatcher_pb2_grpc
from firesteel.common.config import Configuration, options
from firesteel.common.fencing import Refusals
from firesteel.common.ids import Epoch, JobId
from firesteel.common.leader import FixedElection, LeaderElection, Leaders, Office, lead
from firesteel.common.logs import get_logger
from firesteel.common.metrics import Registry, leader_sample
from firesteel.common.rpc.gate import Gate
from firesteel.common.service.platform import SYSTEM, Platform
from firesteel.high_availability import leaders_of

log = get_logger(__name__)

JOB_MASTERS_METHODS = ("ConnectJobMaster", "AppendResults", "CommitCheckpoint", "DownloadBlob")


class Dispatcher:
    """Listens at `address` once constructed, answers while it runs, and serves jobs while it leads.

    It takes over the job store once the address is bound: a second Dispatcher at the same address
    fails without taking the store from the first.
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
        election: LeaderElection | None = None,
        leaders: Leaders | None = None,
        host_label: str = "",
        log_path: Path | None = None,
        open_store: Callable[[Epoch | None], JobStore] | None = None,
        claim_storage: Callable[[], None] = lambda: None,
        platform: Platform = SYSTEM,
    ) -> None:
        """`resource_manager` is its address, unless it is elected. Without `election` the
        Dispatcher leads; without `leaders` it finds them as configured. `open_store` takes the
        store over under an epoch, or the next one; the default is the store at `database.url`, or
        jobs.db in `directory`. `claim_storage` is called first, and raises FiresteelError if this
        Dispatcher must not lead. `log_path` is the log of this process.
        """
        transport, services = platform.transport, [_service(dispatcher_pb2, "Dispatcher")]
        if platform.security is not None:
            services.append(_service(access_pb2, "Access"))
        self._server = transport.server(services)
        self.address = transport.bind(self._server, host, port)
        conf.get(options.PAYLOAD_LIMIT)  # a bad value fails the start, not the first submission
        self._conf = conf
        self._directory = directory
        self._storage = SharedStorage.of(conf, directory)
        self._claim_storage = claim_storage
        self._registry = registry
        self._host_label = host_label
        self._log_path = log_path
        refusals = Refusals()  # by this Dispatcher and its job store
        self._open_store = open_store or (
            lambda epoch: JobStore(job_store_url(conf, directory), epoch, refusals)
        )
        self._platform = platform
        self._leaders = leaders or leaders_of(conf)
        self._resource_manager = self._leaders.of(Office.RESOURCE_MANAGER, resource_manager)
        self._election = election or FixedElection()
        self._stopping = asyncio.Event()
        self.shell: Shell | None = None  # while it leads
        self.spark_connect_url = ""  # as clients of Spark Connect write it; empty: not served
        self.rest_url = ""  # where the REST API next to it is served; empty: nowhere
        self._gate = Gate(
            DispatcherServicer, self._election, peers=JOB_MASTERS_METHODS, refusals=refusals
        )
        labels = {"host": host_label}
        registry.add_source(lambda: refusals.samples("flink_jobmanager_", labels))
        registry.add_source(
            lambda: [leader_sample(Office.DISPATCHER, leads=self.shell is not None, labels=labels)]
        )
        dispatcher_pb2_grpc.add_DispatcherServicer_to_server(  # type: ignore[no-untyped-call]
            self._gate, self._server
        )
        self._security = platform.security
        self._access_gate = Gate(AccessServicer, self._election, peers=(), refusals=refusals)
        self._audit = AuditLog(directory / "audit.jsonl")
        self._storing_audit: asyncio.Task[None] | None = None
        if self._security is not None:
            self._security.audit = self._audit.record
            access_pb2_grpc.add_AccessServicer_to_server(  # type: ignore[no-untyped-call]
                self._access_gate, self._server
            )

    async def start(self) -> None:
        """Starts to answer; an uncontested Dispatcher also leads from now on."""
        if not self._election.contested:
            await self._take_office()
        await self._election.start(self.address)
        await self._leaders.start()
        await self._server.start()

    async def run(self) -> None:
        """Runs until `stop` is called or another Dispatcher leads: then raises LeadershipLost, or
        Fenced if the other one has taken over the job store.
        """
        try:
            await lead(
                self._election,
                self._take_office,
                self._lead,
                stop=self.stop,
                stopping=self._stopping,
            )
        finally:
            await self._election.close()
            await self._server.stop(grace=0.5)
            await self._leaders.close()
            if self._storing_audit is not None:
                self._storing_audit.cancel()
            if self.shell is not None:
                await self.shell.close()
                self.shell.store.close()

    def stop(self) -> None:
        self._stopping.set()
        if self.shell is not None:
            self.shell.stop()

    async def _take_office(self) -> None:
        epoch = await self._election.granted()
        self._claim_storage()
        store, storage = self._open_store(epoch), self._storage
        if self._election.contested:
            storage.lead(store.epoch)
        rows = storage.copies.at(SPOOL) if storage.copies else None
        self.shell = Shell(
            conf=self._conf,
            address=self.address,
            resource_manager=self._resource_manager,
            store=store,
            blobs=BlobStore(
                storage.directory / BLOBS,
                self._conf.get(options.BLOB_LIMIT),
                copies=storage.copies.at(BLOBS) if storage.copies else None,
            ),
            results=ResultStore(
                storage.directory / SPOOL,
                copies=ChunkCopies(rows, store.epoch) if rows else None,
            ),
            log_directory=self._directory / "logs",
            log_path=self._log_path,
            registry=self._registry,
            host=self._host_label,
            permit=self._election,
            replaced=lambda: storage.epoch() > store.epoch,
            platform=self._platform,
        )
        await self.shell.prepare()
        await self._open_access(store)
        servicer = DispatcherServicer(
            self.shell,
            lambda: self.rest_url,
            lambda: self.spark_connect_url,
            self._leaders.standbys,
        )
        self._gate.open(servicer, store.epoch)
        log.info(
            "the Dispatcher leads",
            directory=str(self._directory),
            storage=storage.uri,
            epoch=store.epoch,
        )

    async def _open_access(self, store: JobStore) -> None:
        if self._security is None:
            return
        tokens = await asyncio.to_thread(store.access.tokens)
        self._security.revoke(token.token_id for token in tokens if token.revoked_ms)
        self._storing_audit = asyncio.create_task(self._audit.store(store.access), name="audit")
        self._security.owner_of = self._owner_of
        servicer = AccessServicer(store.access, self._security)
        self._access_gate.open(servicer, store.epoch)

    def _owner_of(self, job_id: str) -> str | None:
        job = self.shell.core.find(JobId(job_id)) if self.shell else None
        return job.owner if job else None

    async def _lead(self) -> None:
        assert self.shell is not None, "it has taken office"
        await self.shell.run()


def _service(module: Any, name: str) -> ServiceDescriptor:
    service: ServiceDescriptor = module.DESCRIPTOR.services_by_name[name]
    return service


def job_store_url(conf: Configuration, directory: Path) -> str:
    return conf.get(options.DATABASE_URL) or JobStore.sqlite_url(directory)
