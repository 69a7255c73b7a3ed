"""The process of a Spark program, `python -m taskexecutor.executor.spark_program.program`: a child
of the slot's process, with two pipes to it.

It runs the program as `__main__`, like `python program.py`, except that its SparkContext is one of
the job's cluster, whatever master the program sets. It waits there until the cluster has started.
"""

from __future__ import annotations

import functools
import inspect
import json
import linecache
import os
import sys
import threading
import traceback
import types
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from firesteel.common.error_report import error_info
from taskexecutor.executor.spark_program.standalone import MASTER, SlotShare, limited

REQUEST_VARIABLE = "FIRESTEEL_SPARK_PROGRAM"
ERROR, UI_ADDRESS = "error", "ui_address"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRequest:
    """Describes the program to its process."""

    file: str  # the path where the user has it
    source: str  # the path of its text on this machine
    arguments: tuple[str, ...]
    cores: int
    memory_mib: int
    ready_fd: int  # read: the URL of the master, once it serves
    report_fd: int  # written: lines of JSON
    user_code_roots: tuple[str, ...] = ()

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> ProgramRequest:
        fields = json.loads(text)
        lists = {name: tuple(fields[name]) for name in ("arguments", "user_code_roots")}
        return cls(**fields | lists)


class Cluster:
    """The job's cluster, from the viewpoint of the program."""

    def __init__(self, request: ProgramRequest) -> None:
        self._share = SlotShare(cores=request.cores, memory_mib=request.memory_mib)
        self._ready = os.fdopen(request.ready_fd, encoding="utf-8")
        self._reports: IO[str] = os.fdopen(request.report_fd, "w", encoding="utf-8")
        self._waiting, self._reporting = threading.Lock(), threading.Lock()
        self._master = ""

    def master(self) -> str:
        """Waits until the cluster has started; returns its URL."""
        with self._waiting:
            if not self._master:
                self._master = self._ready.readline().strip()
                if not self._master:
                    raise RuntimeError("the cluster of this program has ended")
            return self._master

    def report(self, **values: Any) -> None:
        with self._reporting:
            self._reports.write(json.dumps(values) + "\n")
            self._reports.flush()

    def fit(self, conf: Any, asked: str | None) -> None:
        """Makes a SparkConf one of this cluster. `asked` is the master that the program sets."""
        master = self.master()
        asked = asked or conf.get(MASTER, None) or master
        if asked != master:
            _warn(f"the master {asked!r} is ignored: this program has a cluster in the job's slots")
        conf.set(MASTER, master)
        instead, warnings = limited(dict(conf.getAll()), self._share)
        for key, value in instead.items():
            conf.set(key, value)
        for warning in warnings:
            _warn(warning)


def _warn(text: str) -> None:
    print(f"Warning: {text}", file=sys.stderr)


def use_cluster(cluster: Cluster) -> None:
    """Lets every SparkContext of this process be one of the cluster."""
    from pyspark import SparkConf, SparkContext

    create, end = SparkContext.__init__, SparkContext.stop
    signature = inspect.signature(create)

    @functools.wraps(create)
    def created(self: Any, *args: Any, **named: Any) -> None:
        call = signature.bind(self, *args, **named)
        if call.arguments.get("jsc") is None:  # otherwise, the context exists in the JVM
            if call.arguments.get("conf") is None:
                call.arguments["conf"] = SparkConf()
            cluster.fit(call.arguments["conf"], call.arguments.get("master"))
            call.arguments["master"] = None
        create(*call.args, **call.kwargs)
        cluster.report(**{UI_ADDRESS: self.uiWebUrl or ""})

    @functools.wraps(end)
    def ended(self: Any) -> None:
        end(self)
        cluster.report(**{UI_ADDRESS: ""})

    SparkContext.__init__ = created  # type: ignore[method-assign]
    SparkContext.stop = ended  # type: ignore[method-assign]


def run(request: ProgramRequest, cluster: Cluster) -> int:
    """Runs the program and returns its exit code."""
    source = Path(request.source).read_bytes()
    text = source.decode("utf-8", errors="replace")
    linecache.cache[request.file] = (
        len(text), None, text.splitlines(keepends=True), request.file
    )  # fmt: skip
    main = types.ModuleType("__main__")
    main.__file__ = request.file
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    sys.argv = [request.file, *request.arguments]
    try:
        exec(compile(source, request.file, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as exit_:
        return _exit_code(exit_.code)
    except BaseException as error:
        info = error_info(error, user_code_roots=request.user_code_roots)
        cluster.report(**{ERROR: asdict(info)})
        traceback.print_exception(error.with_traceback(_users(error.__traceback__)))
        return 1
    return 0


def _users(frames: types.TracebackType | None) -> types.TracebackType | None:
    """Returns the frames without that of `run`."""
    return frames.tb_next if frames is not None else None


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1


def _stop_session() -> None:
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    if context is not None:
        context.stop()


def main() -> None:
    request = ProgramRequest.parse(os.environ.pop(REQUEST_VARIABLE))
    cluster = Cluster(request)
    use_cluster(cluster)
    code = run(request, cluster)
    sys.stdout.flush()
    try:
        _stop_session()
    except Exception:  # its JVM may have ended, which the program has noticed or not
        traceback.print_exc()
    sys.exit(code)


if __name__ == "__main__":
    main()
