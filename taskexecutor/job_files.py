"""A job's files on this machine: Python files, archives and requirements.

<dir>/jobs/<job id>/files/<name>     --py-files; this folder and each .zip and .whl in it are on
                                     sys.path
<dir>/jobs/<job id>/<target dir>/    --py-archives, unpacked
<dir>/jobs/<job id>/program-modules/  the program's modules, unpacked; on sys.path
<dir>/requirements/<hash>/           --py-requirements, installed once per content
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from firesteel.common.ids import JobId, is_id
from firesteel.common.job_graph import Blob, BlobKind
from firesteel.common.leader import Leaders
from firesteel.common.logs import get_logger
from firesteel.common.service.platform import Platform
from firesteel.errors import FiresteelError
from taskexecutor.blobs import BlobCache
from taskexecutor.core import commands, events
from taskexecutor.executor import PROGRAM_MODULES

log = get_logger(__name__)

INSTALL_TIMEOUT_S = 600.0
SHOWN_PIP_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedFiles:
    """Locations of a job's files."""

    job_dir: Path
    python_paths: tuple[str, ...]
    # Packages were installed. A process cannot unload them, because they may contain native code.
    single_use: bool


class JobFiles:
    def __init__(
        self,
        directory: Path,
        *,
        leaders: Leaders,
        python: str,
        post: Callable[[events.Event], None],
        platform: Platform,
    ) -> None:
        self._jobs = directory / "jobs"
        self._installed = directory / "requirements"
        self._blobs = BlobCache(directory / "blobs", leaders=leaders, platform=platform)
        self._python = python or sys.executable
        self._post = post
        self._preparing: dict[JobId, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Removes the files that a previous TaskExecutor left in the folder."""
        shutil.rmtree(self._jobs, ignore_errors=True)
        self._jobs.mkdir(parents=True)
        self._installed.mkdir(parents=True, exist_ok=True)
        self._blobs.start()

    def prepare(self, command: commands.PrepareJobFiles) -> None:
        """Posts JobFilesReady or JobFilesFailed, unless `remove` is called first."""
        self._cancel(command.job_id)
        self._preparing[command.job_id] = asyncio.create_task(
            self._prepare(command), name=f"files of {command.job_id}"
        )

    def remove(self, job_id: JobId) -> None:
        self._cancel(job_id)
        if is_id(job_id):
            shutil.rmtree(self._jobs / job_id, ignore_errors=True)

    def _cancel(self, job_id: JobId) -> None:
        if (task := self._preparing.pop(job_id, None)) is not None:
            task.cancel()

    async def _prepare(self, command: commands.PrepareJobFiles) -> None:
        try:
            prepared = await self._prepared(
                command.job_id, command.blobs, command.dispatcher_address
            )
        except FiresteelError as error:
            self._failed(command.job_id, str(error))
        except Exception as error:
            log.exception("cannot prepare a job's files", job_id=command.job_id)
            reason = f"the job's files cannot be prepared: {type(error).__name__}: {error}"
            self._failed(command.job_id, reason)
        else:
            self._post(
                events.JobFilesReady(
                    job_id=command.job_id,
                    job_dir=str(prepared.job_dir),
                    python_paths=prepared.python_paths,
                    single_use=prepared.single_use,
                )
            )

    def _failed(self, job_id: JobId, reason: str) -> None:
        """Leaves no files behind: the core only requests the removal of files that are ready or in
        preparation.
        """
        self._preparing.pop(job_id, None)
        if is_id(job_id):
            shutil.rmtree(self._jobs / job_id, ignore_errors=True)
        self._post(events.JobFilesFailed(job_id=job_id, reason=reason))

    async def _prepared(
        self, job_id: JobId, blobs: Sequence[Blob], dispatcher_address: str
    ) -> PreparedFiles:
        if not is_id(job_id):
            raise FiresteelError(f"{job_id!r} is not a job id")
        paths = await asyncio.gather(*(self._blobs.get(blob, dispatcher_address) for blob in blobs))
        job_dir = self._jobs / job_id
        shutil.rmtree(job_dir, ignore_errors=True)
        laid = await asyncio.to_thread(lay_files, job_dir, list(zip(blobs, paths, strict=True)))
        requirements = [
            (b, p) for b, p in zip(blobs, paths, strict=True) if b.kind is BlobKind.REQUIREMENTS
        ]
        installed = tuple(
            [str(await self._install(blob, path, job_dir)) for blob, path in requirements]
        )
        return PreparedFiles(
            job_dir=job_dir, python_paths=(*laid, *installed), single_use=bool(installed)
        )

    async def _install(self, blob: Blob, requirements: Path, job_dir: Path) -> Path:
        """Installs a requirements file with pip into a separate folder, once per content."""
        target = self._installed / blob.hash
        if target.exists():
            return target
        making = Path(tempfile.mkdtemp(dir=self._installed, prefix="part-"))
        try:
            pip = await asyncio.create_subprocess_exec(
                *(
                    self._python,
                    "-m",
                    "pip",
                    "install",
                    "--quiet",
                    "--no-input",
                    "--disable-pip-version-check",
                ),
                *("--target", str(making), "-r", str(requirements)),
                cwd=job_dir,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            try:
                output, _ = await asyncio.wait_for(pip.communicate(), INSTALL_TIMEOUT_S)
            except BaseException as error:
                with contextlib.suppress(ProcessLookupError):
                    pip.kill()
                if isinstance(error, TimeoutError):
                    raise FiresteelError(
                        f"installing {blob.name} took more than {INSTALL_TIMEOUT_S:g} s"
                    ) from None
                raise
            if pip.returncode != 0:
                raise FiresteelError(_pip_failed(blob.name, output.decode(errors="replace")))
            with contextlib.suppress(OSError):  # another job has just installed it
                os.replace(making, target)
            return target
        finally:
            shutil.rmtree(making, ignore_errors=True)


def _pip_failed(name: str, output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    errors = (
        [line.strip() for line in lines if line.startswith("ERROR")]
        or lines[-1:]
        or ["pip printed no reason"]
    )
    tail = "\n  ".join(lines[-SHOWN_PIP_LINES:])
    return f"the requirements in {name} cannot be installed: {errors[0]}\n  {tail}"


def lay_files(job_dir: Path, blobs: Sequence[tuple[Blob, Path]]) -> tuple[str, ...]:
    """Puts files and archives into `job_dir` and returns the entries for sys.path. Raises
    FiresteelError that names the invalid file.
    """
    job_dir.mkdir(parents=True)
    files = job_dir / "files"
    paths: list[str] = []
    for blob, source in blobs:
        match blob.kind:
            case BlobKind.FILE:
                target = _inside(files, blob.name, "Python file")
                if target.exists():
                    raise FiresteelError(
                        f"two different Python files are named {blob.name!r}; rename one of them"
                    )
                files.mkdir(exist_ok=True)
                shutil.copyfile(source, target)
                found_through = target if target.suffix in (".zip", ".whl", ".egg") else files
                paths.append(str(found_through))
            case BlobKind.ARCHIVE:
                target = _inside(
                    job_dir, blob.target_dir or PurePosixPath(blob.name).name, "archive target"
                )
                if target in (files, job_dir / PROGRAM_MODULES):
                    raise FiresteelError(
                        f"archive {blob.name!r} cannot be unpacked into {target.name!r}: "
                        "choose another name after #"
                    )
                unpack(source, target, blob.name)
                paths += [str(job_dir), str(target)]
            case BlobKind.MODULES:
                target = job_dir / PROGRAM_MODULES
                unpack(source, target, blob.name)
                paths.append(str(target))
            case BlobKind.REQUIREMENTS:
                pass
    return tuple(dict.fromkeys(paths))


def _inside(folder: Path, name: str, what: str) -> Path:
    """Returns `folder`/`name`. Raises FiresteelError if that is not inside `folder`."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name or "\\" in name:
        raise FiresteelError(
            f"{what} {name!r} is refused: it must be a path within the job's folder"
        )
    return folder.joinpath(*parts)


def unpack(archive: Path, target: Path, name: str) -> None:
    """Unpacks a zip, tar, tar.gz, tar.bz2 or tar.xz archive. Raises FiresteelError if a member is
    outside `target`.
    """
    target.mkdir(parents=True, exist_ok=True)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                for member in opened.infolist():
                    _inside(target, member.filename, f"archive {name!r}: member")
                opened.extractall(target)
                _restore_modes(opened, target)
        elif tarfile.is_tarfile(archive):
            with tarfile.open(archive) as tar:
                tar.extractall(
                    target, filter="data"
                )  # the "data" filter raises for members and links outside
        else:
            raise FiresteelError(f"archive {name!r} is neither a zip nor a tar file")
    except tarfile.FilterError as error:
        raise FiresteelError(f"archive {name!r} is refused: {error}") from None
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, ValueError) as error:
        raise FiresteelError(f"archive {name!r} cannot be unpacked: {error}") from error


def _restore_modes(opened: zipfile.ZipFile, target: Path) -> None:
    """Restores the permissions that ZipFile drops: programs in an archive need them."""
    for member in opened.infolist():
        mode = (member.external_attr >> 16) & 0o777
        if mode and not member.is_dir():
            with contextlib.suppress(OSError):
                os.chmod(target / member.filename, mode | 0o600)
