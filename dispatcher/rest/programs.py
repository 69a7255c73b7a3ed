"""Programs that clients upload, and their runs.

A program is stored as DIR/uploads/<id>/program, next to `upload.json` with the name that its client
gave it. The id is made here, and is looked up in a listing: no part of a request becomes part of a
path. Each run has the directory DIR/runs/<id>, whose `output.log` is kept.

A program runs in a separate process with the token of its caller, so that the Dispatcher decides
what the caller may do, and audits it. It runs as the user of the cluster.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dispatcher.rest.requests import Refusal
from firesteel.client.package import BadPackage, entries, is_package
from firesteel.client.submitted_program import OUTCOME, REQUEST, ProgramOutcome, ProgramRequest
from firesteel.common.config import Configuration, ConfigurationError, options
from firesteel.common.ids import is_id, random_id
from firesteel.common.logs import get_logger
from firesteel.common.process import StartFailed, exit_reason, module_command, spawn
from firesteel.common.security.credentials import TOKEN_VARIABLE
from firesteel.errors import FiresteelError

log = get_logger(__name__)

MAX_UPLOADS = 100
MAX_RUNS = 100
MAX_RUNNING = 4
KEPT_S = 7 * 86_400.0  # after the upload or the last run
MAX_OUTPUT_CHARS = 32_000  # that an answer shows
_MODULE = "firesteel.client.submitted_program"
_MAX_NAME_CHARS = 200
_CONTENT, _DESCRIPTION, _OUTPUT = "program", "upload.json", "output.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadedProgram:
    program_id: str
    name: str  # what its client calls it; never a path
    uploaded_ms: int
    entries: tuple[str, ...]  # members of a package by which it can be run, the default one first
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """A run that has ended. `error` is why it failed; empty if it did not."""

    outcome: ProgramOutcome
    error: str
    output: str  # the end of it


class ProgramStore:
    """The uploaded programs of one REST server, in a directory that it owns."""

    def __init__(
        self, directory: Path, limit_bytes: int, *, now_s: Callable[[], float] = time.time
    ) -> None:
        self._directory = directory
        self._limit_bytes = limit_bytes
        self._now_s = now_s

    async def add(self, name: str, content: AsyncIterator[bytes]) -> UploadedProgram:
        """Stores a program. Raises Refusal: it is too large, or not a program, or there are too
        many.
        """
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._drop_old()
        if sum(1 for _ in self._directory.iterdir()) >= MAX_UPLOADS:
            raise Refusal(
                409, f"{MAX_UPLOADS} programs are stored, which is the limit: delete one first"
            )
        program_id = random_id()
        unfinished = self._directory / f"{program_id}.part"
        unfinished.mkdir(mode=0o700)
        try:
            await self._receive(unfinished / _CONTENT, content)
            description = {
                "name": name[:_MAX_NAME_CHARS],
                "uploaded_ms": int(self._now_s() * 1000),
                "entries": await asyncio.to_thread(_entries, unfinished / _CONTENT),
            }
            (unfinished / _DESCRIPTION).write_text(json.dumps(description))
            unfinished.rename(self._directory / program_id)
        except OSError as error:
            raise _disk_full(error) from error
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        return self.find(program_id)

    def list(self) -> Sequence[UploadedProgram]:
        """Returns the programs, the newest first."""
        with suppress(FileNotFoundError):
            folders = [each for each in self._directory.iterdir() if not each.suffix]
            programs = [program for each in folders if (program := _read(each)) is not None]
            return sorted(programs, key=lambda program: -program.uploaded_ms)
        return ()

    def find(self, program_id: str) -> UploadedProgram:
        """Raises Refusal if there is no such program."""
        for program in self.list():
            if program.program_id == program_id:
                return program
        raise Refusal(404, f"there is no uploaded program {program_id[:80]!r}")

    def used(self, program: UploadedProgram) -> None:
        """Keeps the program for another `KEPT_S`."""
        with suppress(FileNotFoundError):
            os.utime(program.path.parent, (self._now_s(), self._now_s()))

    def delete(self, program_id: str) -> None:
        """Raises Refusal if there is no such program."""
        shutil.rmtree(self.find(program_id).path.parent, ignore_errors=True)

    async def _receive(self, path: Path, content: AsyncIterator[bytes]) -> None:
        size_bytes = 0
        with path.open("xb") as file:
            async for chunk in content:
                size_bytes += len(chunk)
                if size_bytes > self._limit_bytes:
                    raise Refusal(
                        413,
                        f"the program has more than {self._limit_bytes:,} bytes, the limit"
                        f" ({options.WEB_UPLOAD_LIMIT.key}): read large files from storage that the"
                        " cluster reaches",
                    )
                file.write(chunk)

    def _drop_old(self) -> None:
        """Deletes programs that are unused for long, and interrupted uploads."""
        for folder in self._directory.iterdir():
            if folder.stat().st_mtime < self._now_s() - KEPT_S:
                shutil.rmtree(folder, ignore_errors=True)


class ProgramRunner:
    """Runs programs, a few at a time."""

    def __init__(self, directory: Path, conf: Configuration) -> None:
        self._directory = directory
        self._conf = conf
        self._timeout_s = conf.get(options.WEB_SUBMIT_TIMEOUT)
        self._running = 0

    async def run(self, request: ProgramRequest, token: str) -> ProgramRun:
        """Runs a program to its end. Raises Refusal if too many run, or the disk is full."""
        if self._running >= MAX_RUNNING:
            raise Refusal(503, f"{MAX_RUNNING} programs are running, the limit; try again")
        self._running += 1
        folder = self._directory / random_id()
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._drop_old()
            folder.mkdir(mode=0o700)
            request.write(folder)
            return await self._run(folder, token)
        except OSError as error:
            raise _disk_full(error) from error
        finally:
            self._running -= 1
            for path in folder.glob("*"):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                elif path.name in (REQUEST, OUTCOME):
                    path.unlink(missing_ok=True)

    async def _run(self, folder: Path, token: str) -> ProgramRun:
        problem = ""
        try:
            child = await spawn(
                module_command(_MODULE, str(folder)),
                log_path=folder / _OUTPUT,
                env=self._environment(token),
                cwd=folder,
            )
            try:
                code = await asyncio.wait_for(child.wait(), self._timeout_s)
                if code:
                    problem = f"the program's process ended with {exit_reason(code)}"
            except TimeoutError:
                problem = (
                    f"the program did not end within {self._timeout_s:g} s"
                    f" ({options.WEB_SUBMIT_TIMEOUT.key}) and was killed: submit jobs with"
                    " env.execute(), which does not wait for their end here"
                )
            finally:
                child.kill()
                await child.wait()
        except StartFailed as error:
            problem = f"the program's process did not start: {error.reason}"
        outcome = ProgramOutcome.read(folder) or ProgramOutcome()
        return ProgramRun(
            outcome=outcome, error=problem or outcome.error, output=_end_of(folder / _OUTPUT)
        )

    def _environment(self, token: str) -> dict[str, str]:
        """The environment of a program: that of this process, with the token of the caller instead
        of the secrets of the cluster.
        """
        secret = self._conf.to_environment()
        inherited = {name: text for name, text in os.environ.items() if name not in secret}
        inherited.pop(TOKEN_VARIABLE, None)
        return inherited | ({TOKEN_VARIABLE: token} if token else {})

    def _drop_old(self) -> None:
        newest_first = sorted(self._directory.iterdir(), key=lambda each: -each.stat().st_mtime)
        for number, folder in enumerate(newest_first):
            if number >= MAX_RUNS or folder.stat().st_mtime < time.time() - KEPT_S:
                shutil.rmtree(folder, ignore_errors=True)


class Programs:
    """Stores and runs programs for the callers of a REST server."""

    def __init__(self, directory: Path, conf: Configuration) -> None:
        """`directory` is that of the Dispatcher; `web.upload.dir` replaces it."""
        base = Path(conf.get(options.WEB_UPLOAD_DIR) or directory / "programs")
        self._conf = conf
        self._runner = ProgramRunner(base / "runs", conf)
        self.store = ProgramStore(base / "uploads", conf.get(options.WEB_UPLOAD_LIMIT))

    def check_enabled(self) -> None:
        if not self._conf.get(options.WEB_SUBMIT):
            raise Refusal(
                403,
                f"programs are not run through this API ({options.WEB_SUBMIT.key}: false): use"
                " `firesteel run`",
            )

    async def run(
        self,
        program: UploadedProgram,
        *,
        address: str,
        token: str,
        entry: str = "",
        arguments: Sequence[str] = (),
        overrides: dict[str, str] | None = None,
        job_id: str = "",
        plan_only: bool = False,
    ) -> ProgramRun:
        """Runs a program on the cluster at `address`. Raises Refusal with the program's error."""
        self.check_enabled()
        self.store.used(program)
        if job_id and not is_id(job_id):
            raise Refusal(
                400,
                f"{job_id[:80]!r} is not the id of a job: expected 32 lower-case hex characters",
            )
        try:
            Configuration(overrides)
        except ConfigurationError as error:
            raise Refusal(400, str(error)) from None
        if entry and not program.entries and entry != program.name:
            raise Refusal(400, f"{program.name!r} is one module: it has no entry {entry!r}")
        run = await self._runner.run(
            ProgramRequest(
                program=str(program.path),
                entry=entry if program.entries else "",
                arguments=tuple(arguments),
                address=address,
                configuration=self._conf.for_jobs(),
                overrides=overrides or {},
                job_id=job_id,
                plan_only=plan_only,
            ),
            token,
        )
        if run.error:
            raise Refusal(400, _failure(program, run))
        return run


def _failure(program: UploadedProgram, run: ProgramRun) -> str:
    parts = [run.error]
    if run.outcome.job_ids:
        parts.append(f"It has submitted jobs, which run on: {', '.join(run.outcome.job_ids)}")
    if run.output:
        parts.append(f"The end of the output of {program.name}:\n{run.output}")
    return "\n\n".join(parts)


def _entries(path: Path) -> Sequence[str]:
    """Returns the entries of a package; none of a Python file. Raises Refusal for other files."""
    try:
        if is_package(path):
            return entries(path)
        compile(path.read_bytes(), "the program", "exec", dont_inherit=True)
    except BadPackage as error:
        raise Refusal(400, str(error)) from None
    except (SyntaxError, ValueError) as error:
        raise Refusal(
            400,
            f"the file is neither a Python program nor a package: {error}; upload a .py file, or"
            " what `firesteel package job.py` writes",
        ) from None
    return ()


def _read(folder: Path) -> UploadedProgram | None:
    try:
        description = json.loads((folder / _DESCRIPTION).read_text())
    except (OSError, ValueError):  # deleted now, or not a program
        return None
    return UploadedProgram(
        program_id=folder.name,
        name=description["name"],
        uploaded_ms=description["uploaded_ms"],
        entries=tuple(description["entries"]),
        path=folder / _CONTENT,
    )


def _end_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MAX_OUTPUT_CHARS))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


def _disk_full(error: OSError) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return FiresteelError("the disk of the REST server is full: the program was not run")
    return error
