"""An S3 server of the tests' own, with one bucket, which can be away for a while."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from urllib.request import Request, urlopen

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "checkpoints"
ACCESS_KEY, SECRET_KEY = "AKIAFIRESTEEL", "a-secret-that-no-log-may-show"


class ObjectStore:
    """`stop` and `start` keep what is in it."""

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # every request is a line otherwise
        self._port = 0
        self.start()
        self._client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )
        self._client.create_bucket(Bucket=BUCKET)

    def start(self) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", self._port, verbose=False)
        self._server.start()
        _, self._port = self._server.get_host_and_port()

    def stop(self) -> None:
        self._server.stop()

    def __enter__(self) -> ObjectStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.close()
        self.stop()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """It knows no credentials."""
        self._authenticate(after=0)
        try:
            yield
        finally:
            self._authenticate(after=float("inf"))

    def _authenticate(self, *, after: float) -> None:
        request = Request(
            f"{self.endpoint}/moto-api/reset-auth",
            data=str(after).encode(),
            headers={"Content-Type": "text/plain"},
        )
        with urlopen(request) as answer:
            answer.read()

    def uri(self, path: str, *, bucket: str = BUCKET) -> str:
        """Returns a directory's URI, with everything except the credentials."""
        return f"s3://{bucket}/{path}?endpoint_override=127.0.0.1:{self._port}&scheme=http"

    def put(self, path: str, content: bytes) -> None:
        self._client.put_object(Bucket=BUCKET, Key=path, Body=content)

    def delete(self, path: str) -> None:
        self._client.delete_object(Bucket=BUCKET, Key=path)

    def paths(self, prefix: str = "") -> list[str]:
        """Returns the paths of all objects except directory markers."""
        found = self._client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        paths = [content["Key"] for page in found for content in page.get("Contents", [])]
        return [path for path in paths if not path.endswith("/")]

    def unfinished_uploads(self) -> int:
        return len(self._client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []))
