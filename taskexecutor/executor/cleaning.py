"""What a job brings into the process, and how nothing of it is left when the slot is given back."""

from __future__ import annotations

import contextlib
import gc
import importlib
import linecache
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import psutil
import structlog

log = structlog.get_logger(__name__)

JOB_DIR_VARIABLE = "FIRESTEEL_JOB_DIR"  # where the job's archives are unpacked


class JobSurroundings:
    """The job's files on sys.path and in Spark's Python workers, its spark.* values in the session;
    `leave` undoes it all.
    """

    def __init__(
        self, session: Any, jvm_pid: int, job_dir: str, python_paths: Sequence[str]
    ) -> None:
        self._session = session
        self._values_before = session._jvm.java.util.HashMap(_values(session))
        self._jvm_pid = jvm_pid
        self._paths = [path for path in python_paths if path not in sys.path]
        self._roots = tuple({path.rstrip("/") for path in (*python_paths, job_dir) if path})
        sys.path[:0] = self._paths
        importlib.invalidate_caches()
        if job_dir:
            os.environ[JOB_DIR_VARIABLE] = job_dir
        if (
            self._paths
        ):  # a worker joins these to the folder of Spark's files; absolute ones stay what they are
            session.sparkContext._python_includes.extend(self._paths)
            # Part of what tells worker pools apart: this job gets workers that have imported
            # nothing yet.
            session.sparkContext.environment[JOB_DIR_VARIABLE] = job_dir

    def configure(self, config: Mapping[str, str]) -> None:
        """Sets the job's spark.* values. Those that Spark takes at its start only were given to it
        then.
        """
        for key, value in config.items():
            if not key.startswith("spark."):
                continue
            former = self._session.conf.get(key, None)
            if former == value:
                continue
            if not self._session.conf.isModifiable(key):
                log.warning(
                    "a value that Spark takes only when it starts is ignored",
                    key=key,
                    value=value,
                    stays=former,
                )
                continue
            self._session.conf.set(key, value)

    def leave(self) -> None:
        sys.path[:] = [path for path in sys.path if path not in self._paths]
        for path in (
            [path for path in sys.path_importer_cache if path.startswith(self._roots)]
            if self._roots
            else []
        ):
            del sys.path_importer_cache[path]
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


def forget_modules(roots: Sequence[str]) -> list[str]:
    """Removes from sys.modules what was loaded from below `roots` (folders or zip files); returns
    the names.
    """
    names: list[str] = []
    for name, module in list(sys.modules.items()):
        places = [getattr(module, "__file__", None) or "", *_package_path(module)]
        if any(place == root or place.startswith(root + "/") for place in places for root in roots):
            names.append(name)
            del sys.modules[name]
    return names


def _package_path(module: Any) -> list[str]:
    try:
        return [str(place) for place in getattr(module, "__path__", ())]
    except Exception:  # modules may be anything
        return []


def end_python_workers(jvm_pid: int) -> None:
    """Kills Spark's Python workers, and whatever they have started: they hold what a job's
    functions imported and kept, and their memory counts as the slot's. Spark starts new ones when
    it needs them.

    The daemon that they are forked from has nothing of a job in it and stays (Spark does not expect
    its end), unless it was made for this job's files: nobody will use it again.
    """
    with contextlib.suppress(
        psutil.NoSuchProcess
    ):  # the JVM itself is gone, and its workers go by themselves
        for daemon in psutil.Process(jvm_pid).children():
            with contextlib.suppress(psutil.Error):
                if "pyspark.daemon" not in daemon.cmdline():
                    continue
                ended = daemon.children(recursive=True)
                if JOB_DIR_VARIABLE in daemon.environ():
                    ended.append(daemon)
                for process in ended:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()


def clean_session(session: Any, values_before: Any) -> None:
    """Drops what a job may have left in the session: cached tables, temporary views and functions,
    values it has set.
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
            values.clear()
            values.putAll(values_before)
    except Exception:
        log.warning("the Spark session could not be cleaned", exc_info=True)


def _values(session: Any) -> Any:
    """The session's own values, a java.util.Map: all of them are copied or compared in one call."""
    return session._jsparkSession.sessionState().conf().settings()
