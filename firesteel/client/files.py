"""Users' files: `--py-files`, `--py-archives`, `--py-requirements`, and the program's modules."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import xxhash

from firesteel.common.config import options
from firesteel.common.globs import not_readable, printable
from firesteel.common.job_graph import Blob, BlobKind
from firesteel.errors import FiresteelError, InvalidProgram
from firesteel.plan.local_modules import MODULE_SUFFIXES, LocalModule
from firesteel.text import valid_text

CHUNK_BYTES = 2**20
_MODULES = "program-modules.zip"


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFile:
    """A file on this machine that is shipped with a job; a folder is zipped.

    With `members`, it is a zip file of them, by their paths in the archive, and `path` is only its
    name.
    """

    path: Path
    kind: BlobKind
    target_dir: str = ""  # archives only
    members: Mapping[str, Path] = field(default_factory=dict)


def python_file(path: str) -> UserFile:
    return UserFile(path=_existing(path, "--py-files"), kind=BlobKind.FILE)


def python_archive(specification: str) -> UserFile:
    """Parses `a.zip#dir`, or `a.zip`, which is unpacked as `a.zip`."""
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


class ProgramModules(NamedTuple):
    files: tuple[UserFile, ...]
    left_behind: str  # a sentence about files that are not shipped, for a warning; or empty


def program_modules(modules: Sequence[LocalModule], limit_bytes: int) -> ProgramModules:
    """Returns the files of a program's modules, including data files in their packages.

    If all of them exceed `limit_bytes`, returns only the modules. Raises InvalidProgram if these
    exceed it as well. 0: no files are shipped.
    """
    if not limit_bytes:
        return ProgramModules((), "")
    archives = [place for module in modules if module.zipped for place in module.places]
    members = {
        name: file for module in modules if not module.zipped for name, file in module.files()
    }
    files = tuple(UserFile(path=archive, kind=BlobKind.FILE) for archive in dict.fromkeys(archives))
    left_behind = ""
    sizes = {name: file.stat().st_size for name, file in members.items()}
    if sum(sizes.values()) > limit_bytes:
        data = {name: size for name, size in sizes.items() if not name.endswith(MODULE_SUFFIXES)}
        rest = sum(sizes.values()) - sum(data.values())
        if rest > limit_bytes:
            folders = ", ".join(str(place) for module in modules for place in module.places)
            raise InvalidProgram(
                f"the program's modules have {rest:,} bytes, over the limit of {limit_bytes:,}"
                f" ({options.MODULES_LIMIT.key}): {folders}; raise the limit, or set it to 0 if the"
                " cluster has them"
            )
        largest = max(data, key=data.__getitem__)
        left_behind = (
            f"{len(data):,} files of {sum(data.values()):,} bytes, such as {members[largest]}, are"
            f" not shipped with the program's modules, whose limit is {limit_bytes:,} bytes"
            f" ({options.MODULES_LIMIT.key}): ship them with --py-archives, or raise the limit"
        )
        members = {name: file for name, file in members.items() if name not in data}
    if members:
        travelling = UserFile(path=Path(_MODULES), kind=BlobKind.MODULES, members=members)
        files = (*files, travelling)
    return ProgramModules(files, left_behind)


class PreparedFile(NamedTuple):
    """A file to upload, and its description."""

    path: Path
    blob: Blob


def prepared(file: UserFile, scratch: Path) -> PreparedFile:
    """Zips folders, and files with members, into `scratch`."""
    for name in (file.path.name, file.target_dir, *file.members):
        if valid_text(name) != name:
            raise FiresteelError(f"{name!r} is not valid UTF-8: rename the file")
    path = file.path
    if file.members:
        path = _zip(scratch / path.name, file.members)
    elif path.is_dir():
        path = _zipped(path, scratch)
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


def unshippable(path: Path) -> str:
    """Returns why an existing path cannot be shipped; empty if it can."""
    if kind := not_readable(str(path)):
        return f"the path is {kind}; only regular files and folders are shipped"
    if printable(str(path)) != str(path):
        return "the name is not valid UTF-8; rename it"
    return ""


def chunks(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            yield chunk


def _zipped(folder: Path, scratch: Path) -> Path:
    """Zips a folder. A package is importable by its name; any other folder is put on the path."""
    root = folder.parent if (folder / "__init__.py").exists() else folder
    members = {
        str(path.relative_to(root)): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    return _zip(scratch / f"{folder.name}.zip", members)


def _zip(target: Path, members: Mapping[str, Path]) -> Path:
    """Zips deterministically, so that the same content is uploaded once."""
    with zipfile.ZipFile(target, "w") as archive:
        for name, path in members.items():
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return target


def _existing(path: str, where: str) -> Path:
    full = Path(path).expanduser().resolve()
    if not full.exists():
        raise FiresteelError(f"{where} {path}: there is no such file ({full})")
    if problem := unshippable(full):
        raise FiresteelError(f"{where} {printable(path)}: {problem}")
    return full
