"""Finds the packages of the services: dispatcher, resourcemanager, jobmaster and taskexecutor.

In the sources they are top-level packages. A wheel has them in a folder inside `firesteel`, which
is not on sys.path, because a program's own modules may have these names. Only the processes of a
cluster, `firesteel.testing` and `firesteel kafka` search it.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from firesteel.common.security.credentials import TOKEN_VARIABLE

SERVICES = ("dispatcher", "resourcemanager", "jobmaster", "taskexecutor")
SAFE_PATH = "PYTHONSAFEPATH"
_FIRESTEEL = Path(__file__).resolve().parents[1]
_INSTALLED = _FIRESTEEL / "_services"


def services_folder() -> Path:
    return _INSTALLED if _INSTALLED.is_dir() else _FIRESTEEL.parent


def import_path(inherited: str | None) -> str:
    """Returns a PYTHONPATH that starts with Firesteel and the services, followed by `inherited`."""
    ours = [str(services_folder()), str(_FIRESTEEL.parent)]
    others = (inherited or "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(path for path in (*ours, *others) if path))


def service_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a process that runs a service, or starts some. Modules in its
    current folder are not imported, and the token of a client is not inherited.
    """
    search_path = import_path(inherited.get("PYTHONPATH"))
    kept = {name: value for name, value in inherited.items() if name != TOKEN_VARIABLE}
    return {**kept, "PYTHONPATH": search_path, SAFE_PATH: "1"}


def make_importable() -> None:
    """Lets this process import the services' packages. Raises ImportError if another module has the
    name of a required one.
    """
    folder = str(services_folder())
    if folder not in sys.path:
        sys.path.append(folder)  # last, so that it hides no other folder
    spec = importlib.util.find_spec("taskexecutor")
    if spec is None or not str(spec.origin).startswith(f"{folder}{os.sep}"):
        raise ImportError(
            "this part of Firesteel needs its package taskexecutor, but `import taskexecutor`"
            f" finds {spec and spec.origin}: rename that module"
        )
