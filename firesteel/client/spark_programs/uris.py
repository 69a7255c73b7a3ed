"""The paths and URIs that PySpark programs use, as Firesteel's."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

_CLOUDS = {"s3a": "s3", "s3n": "s3", "gs": "gcs"}  # names of Hadoop's file systems


def resolved(uri: str) -> str:
    """Returns the location as a path of this machine, or a URI with the scheme that pyarrow has."""
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return os.path.abspath(unquote(parts.path))
    if "://" not in uri:
        return os.path.abspath(os.path.expanduser(uri))
    return uri.replace(parts.scheme, _CLOUDS.get(parts.scheme, parts.scheme), 1)
