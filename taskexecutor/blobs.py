"""The blobs of jobs: downloaded from the Dispatcher once for each content and shared by jobs."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import grpc
import xxhash

from firesteel._proto import dispatcher_pb2, dispatcher_pb2_grpc
from firesteel.common.ids import is_id
from firesteel.common.job_graph import Blob
from firesteel.common.service.platform import Platform
from firesteel.errors import FiresteelError

DOWNLOAD_TIMEOUT_S = 300.0


class BlobCache:
    """Files in `directory`, named by the hash of their content. A file that exists is complete."""

    def __init__(self, directory: Path, *, platform: Platform) -> None:
        self._directory = directory
        self._transport = platform.transport
        self._downloads: dict[str, asyncio.Task[Path]] = {}

    def start(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)

    async def get(self, blob: Blob, dispatcher_address: str) -> Path:
        """The blob's file. Raises FiresteelError if it cannot be downloaded or has another hash."""
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
        return await asyncio.shield(download)  # another job may wait for it, too

    async def _download(self, blob: Blob, path: Path, dispatcher_address: str) -> Path:
        if not dispatcher_address:
            raise FiresteelError(
                f"file {blob.name!r} cannot be fetched: the address of the Dispatcher is missing"
            )
        digest = xxhash.xxh3_128()
        handle, name = tempfile.mkstemp(dir=self._directory, prefix="part-")
        try:
            with os.fdopen(handle, "wb") as file:
                async with self._transport.channel(dispatcher_address) as channel:
                    stub = dispatcher_pb2_grpc.DispatcherStub(channel)  # type: ignore[no-untyped-call]
                    request = dispatcher_pb2.DownloadBlobRequest(hash=blob.hash)
                    async for chunk in stub.DownloadBlob(request, timeout=DOWNLOAD_TIMEOUT_S):
                        digest.update(chunk.data)
                        file.write(chunk.data)
            if digest.hexdigest() != blob.hash:
                raise FiresteelError(
                    f"file {blob.name!r} from {dispatcher_address} is not what was uploaded: "
                    "its hash differs"
                )
            os.replace(name, path)
        except grpc.aio.AioRpcError as error:
            raise FiresteelError(
                f"file {blob.name!r} cannot be fetched from the Dispatcher at "
                f"{dispatcher_address}: {error.code().name}: {error.details()}"
            ) from error
        except OSError as error:
            raise FiresteelError(
                f"file {blob.name!r} cannot be stored in {self._directory}: {error.strerror}"
            ) from error
        finally:
            Path(name).unlink(missing_ok=True)
        return path
