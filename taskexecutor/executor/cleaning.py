"""Installs a job's files and settings in the process, and removes them when the slot is
released.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import linecache
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from firesteel.common.logs import get_logger
from firesteel.errors import FiresteelError
from taskexecutor.executor import PROGRAM_MODULES, interpreter
from taskexecutor.executor.columnar.jvm.session import PYTHON_DAEMON

log = get_logger(__name__)

JOB_DIR_VARIABLE = "FIRESTEEL_JOB_DIR"  # where the job's archives are unpacked


class JobSurroundings:
    """The job's files on sys.path and in Spark's Python workers, and its spark.* options in the
    session. `leave` removes them.
    """

    def __init__(
        self, session: Any, jvm_pid: int, job_dir: str, python_paths: Sequence[str]
    ) -> None:
        self._session = session
        self._values_before = session._jvm.java.util.HashMap(_values(session))
        self._jvm_pid = jvm_pid
        self._paths = [path for path in python_paths if path not in sys.path]
        self._modules = Path(job_dir, PROGRAM_MODULES) if job_dir else None
        self._roots = tuple({path.rstrip("/") for path in (*python_paths, job_dir) if path})
        sys.path[:0] = self._paths
        importlib.invalidate_caches()
        if job_dir:
            os.environ[JOB_DIR_VARIABLE] = job_dir
        if self._paths:
            # A worker joins these to the folder of Spark's files; absolute paths stay absolute.
            session.sparkContext._python_includes.extend(self._paths)
            # Spark pools workers by their environment, so this job gets workers that have imported
            # nothing yet.
            session.sparkContext.environment[JOB_DIR_VARIABLE] = job_dir

    def configure(self, config: Mapping[str, str]) -> None:
        """Sets the job's spark.* options, except static ones, which Spark reads only at
        start-up.
        """
        for key, value in config.items():
            if not key.startswith("spark."):
                continue
            former = self._session.conf.get(key, None)
            if former == value:
                continue
            if not self._session.conf.isModifiable(key):
                log.warning(
                    "ignoring a static Spark option, which is only read at start-up",
                    key=key,
                    value=value,
                    stays=former,
                )
                continue
            self._session.conf.set(key, value)

    def check_modules(self) -> None:
        """Raises FiresteelError: see `check_modules`."""
        if self._modules is not None and self._modules.is_dir():
            check_modules(self._modules)

    def leave(self) -> None:
        sys.path[:] = [path for path in sys.path if path not in self._paths]
        forget_folders(self._roots)
        forgotten = forget_modules(self._roots)
        if forgotten:
            log.info("forgot the job's modules", modules=len(forgotten))
        os.environ.pop(JOB_DIR_VARIABLE, None)
        if self._paths:
            includes = self._session.sparkContext._python_includes
            includes[:] = [path for path in includes if path not in self._paths]
            self._session.sparkContext.environment.pop(JOB_DIR_VARIABLE, None)
        clean_session(self._session, self._values_before)
        end_python_workers(self._jvm_pid)
        linecache.clearcache()
        gc.collect()
        interpreter.return_freed_memory()


def check_modules(folder: Path) -> None:
    """Raises FiresteelError if the process has already loaded a different module under the name of
    a module in the folder, because an import would return the loaded one.
    """
    for entry in sorted(folder.iterdir()):
        loaded = sys.modules.get(entry.name.partition(".")[0])
        if loaded is None or any(_is_below(place, [str(folder)]) for place in _places(loaded)):
            continue
        raise FiresteelError(
            f"the program's module {entry.name!r} has the same name as a module that slots have "
            "loaded"
            f" ({getattr(loaded, '__file__', None) or 'built in'}), which imports would return;"
            " rename the program's module"
        )


def forget_folders(roots: tuple[str, ...]) -> None:
    """Removes import caches of folders below `roots`."""
    for path in list(sys.path_importer_cache):  # other threads import concurrently
        if path.startswith(roots):
            sys.path_importer_cache.pop(path, None)


def forget_modules(roots: Sequence[str]) -> list[str]:
    """Removes the modules loaded from below `roots` (folders or zip files) from sys.modules and
    returns their names.
    """
    names: list[str] = []
    for name, module in list(sys.modules.items()):
        if any(_is_below(place, roots) for place in _places(module)):
            names.append(name)
            del sys.modules[name]
    return names


def _places(module: Any) -> list[str]:
    """Returns the files and folders that a module was loaded from."""
    try:
        folders = [str(place) for place in getattr(module, "__path__", ())]
    except Exception:  # sys.modules may contain arbitrary objects
        folders = []
    return [getattr(module, "__file__", None) or "", *folders]


def _is_below(place: str, roots: Sequence[str]) -> bool:
    return any(place == root or place.startswith(root + "/") for root in roots)


def end_python_workers(jvm_pid: int) -> None:
    """Kills Spark's Python workers and their child processes: they hold what a job's functions
    imported and cached, and their memory counts towards the slot's. Spark starts new ones on
    demand.

    The daemon that forks the workers holds nothing of a job and keeps running, because Spark does
    not expect it to end, unless it was started for this job's files and will not be reused.
    """
    # the JVM has ended, and its workers end with it
    with contextlib.suppress(psutil.NoSuchProcess):
        for daemon in psutil.Process(jvm_pid).children():
            with contextlib.suppress(psutil.Error):
                if PYTHON_DAEMON not in daemon.cmdline():
                    continue
                ended = daemon.children(recursive=True)
                if JOB_DIR_VARIABLE in daemon.environ():
                    ended.append(daemon)
                for process in ended:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()


def clean_session(session: Any, values_before: Any) -> None:
    """Drops what a job may have left in the session: cached tables, temporary views and functions,
    and configuration values.
    """
    try:
        session.catalog.clearCache()
        catalog = session._jsparkSession.sessionState().catalog()
        views = catalog.listLocalTempViews("*")
        for index in range(views.size()):
            session.catalog.dropTempView(views.apply(index).table())
        functions = catalog.listTemporaryFunctions()
        for index in range(functions.size()):
            catalog.dropTempFunction(functions.apply(index).funcName(), True)
        values = _values(session)
        if not values.equals(values_before):
            values.keySet().retainAll(values_before.keySet())  # Py4J's `clear` calls it per entry
            values.putAll(values_before)
    except Exception:
        log.warning("the Spark session could not be cleaned", exc_info=True)


def _values(session: Any) -> Any:
    """Returns the session's configuration, a java.util.Map: copied or compared in one call."""
    return session._jsparkSession.sessionState().conf().settings()
