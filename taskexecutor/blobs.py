"""Blobs of jobs: downloaded from the Dispatcher once per content and shared between jobs."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

import grpc
import tenacity
import xxhash

from firesteel._proto import dispatcher_pb2, dispatcher_pb2_grpc
from firesteel.common.ids import is_id
from firesteel.common.job_graph import Blob
from firesteel.common.leader import Leaders, Office
from firesteel.common.logs import get_logger
from firesteel.common.rpc.leader_stub import LeaderStub, is_transient
from firesteel.common.service.platform import Platform
from firesteel.errors import FiresteelError

log = get_logger(__name__)

DOWNLOAD_TIMEOUT_S = 300.0
RETRY_S = 120.0  # no download is retried after this: cancelled tasks may wait for it


class BlobCache:
    """Files in `directory`, named by the hash of their content. A file that exists is complete."""

    def __init__(self, directory: Path, *, leaders: Leaders, platform: Platform) -> None:
        self._directory = directory
        self._leaders = leaders
        self._transport = platform.transport
        self._downloads: dict[str, asyncio.Task[Path]] = {}

    def start(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)

    async def get(self, blob: Blob, dispatcher_address: str) -> Path:
        """Returns the blob's file. Raises FiresteelError if it cannot be downloaded or its hash
        differs.
        """
        if not is_id(blob.hash):
            raise FiresteelError(f"file {blob.name!r} has a malformed hash {blob.hash!r}")
        path = self._directory / blob.hash
        if path.exists():
            return path
        download = self._downloads.get(blob.hash)
        if download is None:
            download = asyncio.create_task(self._download(blob, path, dispatcher_address))
            self._downloads[blob.hash] = download
            download.add_done_callback(lambda _: self._downloads.pop(blob.hash, None))
        return await asyncio.shield(download)  # shared: another job may wait for it

    async def _download(self, blob: Blob, path: Path, dispatcher_address: str) -> Path:
        """Downloads from the Dispatcher at this address, or from the leader if Dispatchers are
        elected. Retries for RETRY_S while the Dispatcher is unavailable.
        """
        if not dispatcher_address:
            raise FiresteelError(
                f"file {blob.name!r} cannot be downloaded: the address of the Dispatcher is missing"
            )
        to = self._leaders.of(Office.DISPATCHER, dispatcher_address)
        now = asyncio.get_running_loop().time
        started_s = now()
        try:
            async with LeaderStub(
                to, dispatcher_pb2_grpc.DispatcherStub, self._transport.channel
            ) as dispatcher:
                async for attempt in tenacity.AsyncRetrying(
                    wait=tenacity.wait_exponential(multiplier=0.1, max=5.0),
                    retry=tenacity.retry_if_exception(is_transient),
                    stop=tenacity.stop_before_delay(RETRY_S),
                    before_sleep=lambda state: _not_fetched(blob, state),
                    reraise=True,
                ):
                    with attempt:
                        async with asyncio.timeout_at(started_s + RETRY_S):
                            stub = await dispatcher.get()
                        await self._fetch(blob, path, stub)
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            at = f" at {to.leader.address}" if to.leader is not None else ""
            raise FiresteelError(
                f"file {blob.name!r} cannot be downloaded from the Dispatcher{at}; gave up after"
                f" {now() - started_s:.0f} s: {_cause(error)}"
            ) from error
        except OSError as error:
            raise FiresteelError(
                f"file {blob.name!r} cannot be stored in {self._directory}: {error.strerror}"
            ) from error
        return path

    async def _fetch(self, blob: Blob, path: Path, stub: Any) -> None:
        """Raises AioRpcError, OSError, or FiresteelError if the content differs."""
        digest = xxhash.xxh3_128()
        handle, name = tempfile.mkstemp(dir=self._directory, prefix="part-")
        try:
            with os.fdopen(handle, "wb") as file:
                request = dispatcher_pb2.DownloadBlobRequest(hash=blob.hash)
                async for chunk in stub.DownloadBlob(request, timeout=DOWNLOAD_TIMEOUT_S):
                    digest.update(chunk.data)
                    file.write(chunk.data)
            if digest.hexdigest() != blob.hash:
                raise FiresteelError(
                    f"file {blob.name!r} from the Dispatcher is not what was uploaded:"
                    " its hash differs"
                )
            os.replace(name, path)
        finally:
            Path(name).unlink(missing_ok=True)


def _cause(error: BaseException | None) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return "no Dispatcher leads"


def _not_fetched(blob: Blob, state: tenacity.RetryCallState) -> None:
    cause = _cause(state.outcome.exception()) if state.outcome is not None else ""
    log.warning("a job's file cannot be downloaded; retrying", name=blob.name, cause=cause)
