"""Users' files: `--py-files`, `--py-archives` and `--py-requirements`."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import xxhash

from firesteel.common.job_graph import Blob, BlobKind
from firesteel.errors import FiresteelError
from firesteel.text import valid_text

CHUNK_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFile:
    """A file on this machine that is shipped with a job; a folder is zipped."""

    path: Path
    kind: BlobKind
    target_dir: str = ""  # archives only


def python_file(path: str) -> UserFile:
    return UserFile(path=_existing(path, "--py-files"), kind=BlobKind.FILE)


def python_archive(specification: str) -> UserFile:
    """`a.zip#dir`, or `a.zip`, which is unpacked as `a.zip`."""
    path, _, target_dir = specification.partition("#")
    archive = _existing(path, "--py-archives")
    target_dir = target_dir or archive.name
    if Path(target_dir).is_absolute() or ".." in Path(target_dir).parts:
        raise FiresteelError(
            f"--py-archives {specification}: the target {target_dir!r} must be a folder"
            " below the job's own"
        )
    return UserFile(path=archive, kind=BlobKind.ARCHIVE, target_dir=target_dir)


def python_requirements(path: str) -> UserFile:
    return UserFile(path=_existing(path, "--py-requirements"), kind=BlobKind.REQUIREMENTS)


class PreparedFile(NamedTuple):
    """The file to upload, and its description."""

    path: Path
    blob: Blob


def prepared(file: UserFile, scratch: Path) -> PreparedFile:
    """Zips folders into `scratch`."""
    for name in (file.path.name, file.target_dir):
        if valid_text(name) != name:
            raise FiresteelError(f"{name!r} is not valid UTF-8: rename the file")
    path = _zipped(file.path, scratch) if file.path.is_dir() else file.path
    digest = xxhash.xxh3_128()
    size_bytes = 0
    try:
        for chunk in chunks(path):
            digest.update(chunk)
            size_bytes += len(chunk)
    except OSError as error:
        raise FiresteelError(f"cannot read {path}: {error.strerror}") from None
    blob = Blob(
        hash=digest.hexdigest(),
        name=path.name,
        kind=file.kind,
        size_bytes=size_bytes,
        target_dir=file.target_dir,
    )
    return PreparedFile(path, blob)


def chunks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            yield chunk


def _zipped(folder: Path, scratch: Path) -> Path:
    """A package becomes importable by its name; another folder is itself put on the path.

    The same content gives the same bytes, so it is uploaded once.
    """
    root = folder.parent if (folder / "__init__.py").exists() else folder
    target = scratch / f"{folder.name}.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.writestr(zipfile.ZipInfo(str(path.relative_to(root))), path.read_bytes())
    return target


def _existing(path: str, where: str) -> Path:
    full = Path(path).expanduser().resolve()
    if not full.exists():
        raise FiresteelError(f"{where} {path}: there is no such file ({full})")
    return full
