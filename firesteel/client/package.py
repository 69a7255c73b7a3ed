"""One file with a program and its files: `firesteel package` writes it, and `firesteel run` and
the REST API run it.

It is a zip file. The program, its local modules and its data files are at their places below the
program's folder; `firesteel.json` names the program and the files that its jobs ship:

    firesteel.json      {"program": "job.py", "files": [...], "archives": [...], "requirements": ""}
    job.py
    shop/prices.py
    data/rates.csv
    .firesteel/         files of --py-files, --py-archives and --py-requirements

A zip file without `firesteel.json` is run by its `__main__.py`, or by its only top-level module.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from firesteel.client.files import unshippable
from firesteel.common.globs import not_readable, printable
from firesteel.errors import FiresteelError
from firesteel.plan.local_modules import LocalModule, imports_of_file, local_modules

MANIFEST = "firesteel.json"
MAX_UNPACKED_BYTES = 2**30
MAX_MEMBERS = 20_000
_MAIN = "__main__.py"
_SHIPPED = ".firesteel"  # the folder of files that jobs ship


class BadPackage(FiresteelError):
    """A file that cannot be packaged, or a package that cannot be run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackedProgram:
    """A program on disk, and the files that its jobs ship, as `firesteel run` names them."""

    main: Path
    files: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    requirements: str | None = None


def write_package(
    program: Path,
    target: Path,
    *,
    data: Sequence[Path] = (),
    files: Sequence[str] = (),
    archives: Sequence[str] = (),
    requirements: str | None = None,
) -> list[str]:
    """Writes the package of a program with its local modules; returns the names of its members.

    `data` are files and folders below the program's folder. `files`, `archives` and `requirements`
    are those of `firesteel run`. Raises BadPackage.
    """
    root = program.resolve().parent
    members = {program.name: program.resolve()}
    zipped: list[str] = []
    for module in _modules_of(program.resolve()):
        if module.zipped:
            zipped += map(str, module.places)
        else:
            members |= dict(module.files())
    for path in data:
        members |= _below(root, path)
    shipped = [_ship(members, path) for path in dict.fromkeys((*zipped, *files))]
    manifest = {
        "program": program.name,
        "files": shipped,
        "archives": [_ship_archive(members, archive) for archive in archives],
        "requirements": _ship(members, requirements) if requirements else "",
    }
    if MANIFEST in members:
        raise BadPackage(f"the name {MANIFEST} is taken by the package itself: rename the file")
    with _replacing(target) as written, zipfile.ZipFile(written, "w") as archive:
        _write(archive, MANIFEST, json.dumps(manifest, indent=1).encode())
        for name, path in sorted(members.items()):
            _write(archive, name, path.read_bytes())
    return sorted(members)


@contextlib.contextmanager
def opened_program(
    path: Path, entry: str = "", folder: Path | None = None
) -> Iterator[UnpackedProgram]:
    """Yields the program of a Python file, or of a package, which `unpacked` describes."""
    if is_package(path):
        with unpacked(path, entry, folder) as program:
            yield program
    else:
        yield UnpackedProgram(main=path)


def is_package(path: Path) -> bool:
    """Whether the file is a zip file, whatever its name is."""
    return not not_readable(str(path)) and zipfile.is_zipfile(path)


def entries(path: Path) -> tuple[str, ...]:
    """Returns the members of a package by which it can be run, the default one first. Raises
    BadPackage.
    """
    with _opened(path) as archive:
        return _entries(archive, _manifest(archive))


@contextlib.contextmanager
def unpacked(path: Path, entry: str = "", folder: Path | None = None) -> Iterator[UnpackedProgram]:
    """Unpacks a package inside the `with` block, where its modules can be imported.

    `entry` is a module (`shop.job`) or a member (`shop/job.py`); empty: the default one. `folder`
    is the parent of the temporary folder. Raises BadPackage.
    """
    root = Path(tempfile.mkdtemp(prefix="firesteel-package-", dir=folder)).resolve()
    try:
        with _opened(path) as archive:
            manifest = _manifest(archive)
            main = _chosen(_entries(archive, manifest), entry)
            _unpack(archive, root)
        shipped = _listed(manifest, "files"), _listed(manifest, "archives")
        requirements = manifest.get("requirements", "")
        sys.path.insert(0, str(root))
        yield UnpackedProgram(
            main=root / main,
            files=tuple(str(root / name) for name in shipped[0]),
            archives=tuple(str(root / name) for name in shipped[1]),
            requirements=str(root / requirements) if requirements else None,
        )
    finally:
        if str(root) in sys.path:
            sys.path.remove(str(root))
        shutil.rmtree(root, ignore_errors=True)


def _modules_of(program: Path) -> Sequence[LocalModule]:
    sys.path.insert(0, str(program.parent))
    try:
        return local_modules(imports_of_file(program))
    finally:
        sys.path.remove(str(program.parent))


def _below(root: Path, given: Path) -> Mapping[str, Path]:
    """Returns the files of a path by their names below the program's folder."""
    path = given.resolve()
    if not path.exists():
        raise BadPackage(f"--files {given}: there is no such file ({path})")
    if not path.is_relative_to(root):
        raise BadPackage(
            f"--files {given}: the file is not below {root}, the folder of the program, relative to"
            " which the program finds it; move it there"
        )
    if problem := unshippable(path):
        raise BadPackage(f"--files {printable(str(given))}: {problem}")
    inside = sorted(path.rglob("*")) if path.is_dir() else [path]
    return {
        file.relative_to(root).as_posix(): file
        for file in inside
        if file.is_file() and "__pycache__" not in file.parts
    }


def _ship(members: dict[str, Path], given: str) -> str:
    """Adds a file that jobs ship, or the files of a folder; returns its name in the package."""
    path = Path(given).expanduser().resolve()
    if not path.exists():
        raise BadPackage(f"{given}: there is no such file ({path})")
    name = f"{_SHIPPED}/{path.name}"
    if any(known == name or known.startswith(f"{name}/") for known in members):
        raise BadPackage(f"two files that jobs ship are named {path.name!r}: rename one of them")
    if path.is_dir():
        members |= {f"{name}/{below}": file for below, file in _below(path, path).items()}
    else:
        members[name] = path
    return name


def _ship_archive(members: dict[str, Path], given: str) -> str:
    path, separator, folder = given.partition("#")
    return _ship(members, path) + separator + folder


@contextlib.contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """Yields a path to write, which replaces `target` unless the `with` block fails."""
    unfinished = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        yield unfinished
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)


def _write(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as archive:
            _check(archive)
            yield archive
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise BadPackage(f"the file is not a zip file that can be read: {error}") from None


def _check(archive: zipfile.ZipFile) -> None:
    """Refuses members outside the package's folder, and a package that is too large unpacked."""
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise BadPackage(f"the package has {len(members):,} members; at most {MAX_MEMBERS:,}")
    size_bytes = sum(member.file_size for member in members)
    if size_bytes > MAX_UNPACKED_BYTES:
        raise BadPackage(
            f"the package has {size_bytes:,} bytes unpacked, over the limit of"
            f" {MAX_UNPACKED_BYTES:,}: read large files from storage that the cluster reaches"
        )
    for member in members:
        name = PurePosixPath(member.filename)
        if name.is_absolute() or ".." in name.parts or "\\" in member.filename:
            raise BadPackage(f"the member {member.filename!r} is outside the package's folder")
        if member.flag_bits & 1:
            raise BadPackage(f"the member {member.filename!r} is encrypted")


def _unpack(archive: zipfile.ZipFile, root: Path) -> None:
    try:
        archive.extractall(root)
    except OSError as error:
        raise BadPackage(f"the package cannot be unpacked: {error.strerror}") from error


def _manifest(archive: zipfile.ZipFile) -> Mapping[str, Any]:
    if MANIFEST not in archive.namelist():
        return {}
    try:
        manifest = json.loads(archive.read(MANIFEST))
    except ValueError as error:
        raise BadPackage(f"{MANIFEST} in the package is not JSON: {error}") from None
    names = set(archive.namelist())
    listed = [manifest.get("program"), *_listed(manifest, "files")]
    listed += [name.partition("#")[0] for name in _listed(manifest, "archives")]
    listed += [name for name in [manifest.get("requirements")] if name]
    for name in listed:
        known = isinstance(name, str) and (
            name in names or any(each.startswith(f"{name}/") for each in names)
        )
        if not known:
            raise BadPackage(f"{MANIFEST} in the package names {name!r}, which it does not contain")
    return dict(manifest)


def _listed(manifest: Mapping[str, Any], key: str) -> list[str]:
    names = manifest.get(key, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadPackage(f"{MANIFEST} in the package: {key!r} is not a list of names")
    return names


def _entries(archive: zipfile.ZipFile, manifest: Mapping[str, Any]) -> tuple[str, ...]:
    names = archive.namelist()
    modules = sorted(name for name in names if name.endswith(".py"))
    if not modules:
        java = any(name.endswith(".class") or name == "META-INF/MANIFEST.MF" for name in names)
        raise BadPackage(
            f"the file {'is a Java program' if java else 'has no Python program'}: Firesteel runs"
            " Python programs, as a .py file, or as what `firesteel package job.py` writes"
        )
    top_level = [name for name in modules if "/" not in name]
    default = manifest.get("program") or (_MAIN if _MAIN in modules else "")
    if not default and len(top_level) == 1:
        default = top_level[0]
    others = [name for name in modules if name != default]
    return (default, *others) if default else ("", *others)


def _chosen(names: Sequence[str], entry: str) -> str:
    if not entry:
        if names[0]:
            return names[0]
        raise BadPackage(
            f"the package has no {_MAIN} and several modules ({_some(names[1:])}): name the one to"
            " run, or write it with `firesteel package job.py`"
        )
    for name in names:
        if name and entry in (name, name.removesuffix(".py").replace("/", ".")):
            return name
    known = _some([name for name in names if name])
    raise BadPackage(f"the package has no module {entry!r}; it has {known}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
