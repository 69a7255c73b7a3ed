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

import structlog

log = structlog.get_logger(__name__)

JOB_DIR_VARIABLE = "FIRESTEEL_JOB_DIR"  # where the job's archives are unpacked


class JobSurroundings:
    """The job's files on sys.path and in Spark's Python workers, its spark.* values in the session; `leave` undoes it all."""

    def __init__(self, session: Any, job_dir: str, python_paths: Sequence[str]) -> None:
        self._session = session
        self._paths = [path for path in python_paths if path not in sys.path]
        self._roots = tuple({path.rstrip("/") for path in (*python_paths, job_dir) if path})
        self._former_values: dict[str, str | None] = {}
        sys.path[:0] = self._paths
        importlib.invalidate_caches()
        if job_dir:
            os.environ[JOB_DIR_VARIABLE] = job_dir
        if self._paths:  # a worker joins these to the folder of Spark's files; absolute ones stay what they are
            session.sparkContext._python_includes.extend(self._paths)
            # Part of what tells worker pools apart: this job gets workers that have imported nothing yet.
            session.sparkContext.environment[JOB_DIR_VARIABLE] = job_dir

    def configure(self, config: Mapping[str, str]) -> None:
        """Sets the job's spark.* values. Those that Spark takes at its start only were given to it then."""
        for key, value in config.items():
            if not key.startswith("spark.") or key in self._former_values:
                continue
            former = self._session.conf.get(key, None)
            if former == value:
                continue
            if not self._session.conf.isModifiable(key):
                log.warning("a value that Spark takes only when it starts is ignored", key=key, value=value, stays=former)
                continue
            self._former_values[key] = former
            self._session.conf.set(key, value)

    def leave(self) -> None:
        sys.path[:] = [path for path in sys.path if path not in self._paths]
        for path in [path for path in sys.path_importer_cache if path.startswith(self._roots)] if self._roots else []:
            del sys.path_importer_cache[path]
        forgotten = forget_modules(self._roots)
        if forgotten:
            log.info("forgot the job's modules", modules=len(forgotten))
        os.environ.pop(JOB_DIR_VARIABLE, None)
        if self._paths:
            includes = self._session.sparkContext._python_includes
            includes[:] = [path for path in includes if path not in self._paths]
            self._session.sparkContext.environment.pop(JOB_DIR_VARIABLE, None)
        for key, former in self._former_values.items():
            with contextlib.suppress(Exception):
                self._session.conf.unset(key) if former is None else self._session.conf.set(key, former)
        clean_session(self._session)
        linecache.clearcache()
        gc.collect()


def forget_modules(roots: Sequence[str]) -> list[str]:
    """Removes from sys.modules what was loaded from below `roots` (folders or zip files); returns the names."""
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


def clean_session(session: Any) -> None:
    """Drops what a job may have left in the session: cached tables and temporary views."""
    try:
        session.catalog.clearCache()
        catalog = session._jsparkSession.sessionState().catalog()
        views = catalog.listLocalTempViews("*")
        for index in range(views.size()):
            session.catalog.dropTempView(views.apply(index).table())
    except Exception:
        log.warning("the Spark session could not be cleaned", exc_info=True)
