"""The process in front of Spark Connect, from the viewpoint of the process that starts it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from firesteel.client.execution_context import ExecutionContext
from firesteel.client.files import UserFile
from firesteel.client.spark_programs.detection import mentions_streams
from firesteel.common.installation import service_environment
from firesteel.common.job_graph import BlobKind
from firesteel.common.process import (
    WITHOUT_FORK_HANDLERS,
    BlockingChild,
    StartFailed,
    log_tail,
    module_command,
    spawn_blocking,
    temporary,
)
from firesteel.common.security.credentials import TOKEN_VARIABLE
from firesteel.errors import FiresteelError

MODULE = "firesteel.spark_connect"
REQUEST, LOG = "request.json", "front.log"
# A JVM takes minutes to start on a busy machine. Its death ends the wait.
START_TIMEOUT_S = 600.0
# With these, PySpark would create sessions of Spark Connect in the front and in slots.
_OF_CONNECT = frozenset({"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"})
STOP_TIMEOUT_S = 120.0  # queries end with savepoints


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontRequest:
    """Describes to a front its program and the cluster of its jobs."""

    token: str  # that programs present
    main: str  # the program's main file, or the specification of a pipeline
    sources: tuple[str, ...] = ()  # its Python files; local modules that they import are found
    address: str = ""  # of the cluster's Dispatcher; empty: the front starts a cluster
    job_id: str = ""  # of the only job of an application cluster
    task_executors: int = 1  # of a cluster that the front starts
    streams: bool = True  # whether the program seems to have streaming queries
    configuration: dict[str, str] = field(default_factory=dict)
    overrides: dict[str, str] = field(default_factory=dict)  # of the configuration of all jobs
    settings: dict[str, str] = field(default_factory=dict)  # of Spark
    files: tuple[UserFile, ...] = ()
    search_path: tuple[str, ...] = ()  # on which the program finds its modules

    @classmethod
    def read(cls, folder: Path) -> FrontRequest:
        fields = json.loads((folder / REQUEST).read_text())
        files = tuple(
            UserFile(
                path=Path(file["path"]),
                kind=BlobKind(file["kind"]),
                target_dir=file["target_dir"],
                members={name: Path(path) for name, path in file["members"].items()},
            )
            for file in fields["files"]
        )
        tuples = {name: tuple(fields[name]) for name in ("search_path", "sources")}
        return cls(**fields | tuples | {"files": files})

    def write(self, folder: Path) -> None:
        """Writes a file that other users cannot read."""
        with open(os.open(folder / REQUEST, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            json.dump(asdict(self), file, default=_plain)


class FrontProcess:
    """The front of one program, started by the first use of `url`.

    `sources` are the Python files of a pipeline, whose specification is `main`; None: `main` is a
    program. Unless it `runs_jobs`, the front starts no cluster ahead of them.
    """

    def __init__(
        self,
        main: Path,
        context: ExecutionContext,
        sources: Sequence[Path] | None = None,
        *,
        runs_jobs: bool = True,
    ) -> None:
        self._main = main.resolve()
        self._sources = sources
        self._runs_jobs = runs_jobs
        self._context = context
        self._child: BlockingChild | None = None
        self._folder: Path | None = None
        self._lifeline = -1  # its write end: the front ends when this process does
        self._url = ""
        self.settings: dict[str, str] = {}  # with which it was started
        self.used = False  # whether it has ever been started

    @property
    def started(self) -> bool:
        return self._child is not None

    def url(self, settings: Mapping[str, str]) -> str:
        """Returns the address for PySpark's clients; starts the front, with Spark's `settings`, if
        it does not run. Raises FiresteelError.
        """
        if self._child is None:
            self._start(dict(settings))
        return self._url

    def _start(self, settings: dict[str, str]) -> None:
        context = self._context
        if not context.attached:
            raise FiresteelError(
                "the streaming queries of a PySpark program end with the program, so it cannot run"
                " detached: run it without -d"
            )
        own = context.embedded_cluster
        conf = context.conf if own is None else own.conf
        token = secrets.token_urlsafe(24)
        self._folder = temporary.make("front")
        FrontRequest(
            token=token,
            main=str(self._main),
            address=context.address,
            job_id=context.job_id,
            task_executors=0 if own is None else own.task_executors,
            sources=tuple(
                str(file.resolve())
                for file in ((self._main,) if self._sources is None else self._sources)
            ),
            streams=self._runs_jobs and (self._sources is not None or mentions_streams(self._main)),
            configuration=conf.to_dict(),
            overrides=context.overrides,
            settings={**conf.spark(), **settings},
            files=context.files,
            search_path=_search_path(),
        ).write(self._folder)
        lifeline, self._lifeline = os.pipe()
        try:
            self._child = spawn_blocking(
                module_command(MODULE, str(self._folder)),
                env=_environment(),
                lifeline=lifeline,
                ready_timeout_s=START_TIMEOUT_S,
            )
        except StartFailed as error:
            tail = log_tail(self._folder / LOG)
            raise FiresteelError(
                f"the front of Spark Connect did not start: {error.reason}"
                + (f"; the end of its log:\n{tail}" if tail else "")
            ) from None
        finally:
            os.close(lifeline)
        if "error" in self._child.ready:
            child, self._child = self._child, None
            child.process.wait()
            raise FiresteelError(child.ready["error"])
        self.settings, self.used = settings, True
        self._url = f"sc://localhost:{self._child.ready['port']}/;token={token}"

    def stop(self) -> None:
        """Ends the program's queries and the front. May be called again."""
        child, self._child = self._child, None
        if child is not None:
            child.stop(STOP_TIMEOUT_S)
        if self._lifeline >= 0:
            os.close(self._lifeline)  # ends what could not be stopped
            self._lifeline = -1
        if self._folder is not None:
            temporary.remove(self._folder)
            self._folder = None


def _search_path() -> tuple[str, ...]:
    """Returns where the program's modules are. Installed ones belong to this Python; Spark's
    workers may have another.
    """
    prefixes = (sys.prefix, sys.base_prefix)
    return tuple(
        folder
        for folder in sys.path
        if folder and not any(Path(folder).is_relative_to(prefix) for prefix in prefixes)
    )


def _environment() -> dict[str, str]:
    """The front is the program's own process: unlike a service, it has the user's token."""
    kept = {name: text for name, text in os.environ.items() if name not in _OF_CONNECT}
    environment = {**WITHOUT_FORK_HANDLERS, **service_environment(kept)}  # PySpark forks
    with contextlib.suppress(KeyError):
        environment[TOKEN_VARIABLE] = os.environ[TOKEN_VARIABLE]
    return environment


def _plain(value: object) -> object:
    return value.value if isinstance(value, BlobKind) else str(value)
