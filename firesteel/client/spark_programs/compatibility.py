"""Gives a PySpark program sessions of Spark Connect, and what programs use of a SparkContext."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, Protocol

from firesteel.errors import FiresteelError

REMOTE, REMOTE_VARIABLE = "spark.remote", "SPARK_REMOTE"
MODE_VARIABLE = "SPARK_CONNECT_MODE_ENABLED"  # PySpark's functions then make Connect's columns
MASTER, MASTER_VARIABLE = "spark.master", "MASTER"
# Settings that decide how a program gets its session, not how Spark works.
_OF_THE_RUN = frozenset({REMOTE, MASTER, "spark.api.mode", "spark.submit.deployMode"})
_LOG_LEVELS = ("ALL", "DEBUG", "ERROR", "FATAL", "INFO", "OFF", "TRACE", "WARN")
# Members of a SparkContext that need its JVM, and what to use instead.
_INSTEAD = {
    "parallelize": "create a DataFrame with spark.createDataFrame(rows, schema)",
    "range": "use spark.range(...)",
    "textFile": "use spark.read.text(path)",
    "wholeTextFiles": "use spark.read.text(path, wholetext=True)",
    "binaryFiles": 'use spark.read.format("binaryFile").load(path)',
    "broadcast": "let the function refer to the variable, which is sent with it",
    "accumulator": "use an aggregate, or DataFrame.observe(...)",
    "_jvm": "use the DataFrame API or spark.sql(...), which need no access to the JVM",
}
_INSTEAD |= dict.fromkeys(("_jsc", "_jsparkSession", "_jdf", "_jconf"), _INSTEAD["_jvm"])
_INSTEAD["rdd"] = (
    "use the DataFrame API: mapInPandas or mapInArrow for functions of partitions, a udf for"
    " functions of values, foreachBatch or foreach for effects"
)


class NotAvailable(FiresteelError, AttributeError):
    """A program uses a part of PySpark that needs a SparkContext in its own process."""


class Front(Protocol):
    """The server that sessions connect to."""

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings with which it was started."""

    @property
    def started(self) -> bool: ...

    def url(self, settings: Mapping[str, str]) -> str:
        """Returns the address; starts it, with Spark's settings, if it does not run."""


@contextlib.contextmanager
def connect_sessions(front: Front) -> Iterator[None]:
    """Inside the block, `SparkSession.builder` creates sessions of the front. At the end, they are
    closed.

    Settings of the builder go to Spark when the front starts. `.master(...)` has no effect, which
    a warning says. A program that names another Spark Connect server by `.remote(...)` gets it.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.dataframe import DataFrame as ConnectDataFrame
    from pyspark.sql.connect.session import SparkSession as ConnectSession

    sessions = _Sessions(front)
    with contextlib.ExitStack() as patches:

        def patch(owner: type, name: str, value: Any) -> None:
            own = name in vars(owner)
            before = vars(owner).get(name)
            setattr(owner, name, value)
            patches.callback(*((setattr, owner, name, before) if own else (delattr, owner, name)))

        patches.enter_context(_environment())
        patches.enter_context(_quiet_errors())
        builder = SparkSession.Builder
        patch(builder, "_validate_startup_urls", lambda self: None)
        for name in ("getOrCreate", "create"):
            patch(builder, name, sessions.creating(getattr(builder, name)))
        patch(SparkContext, "__init__", _no_context)
        patch(SparkContext, "getOrCreate", classmethod(sessions.context))
        patch(ConnectSession, "sparkContext", property(ConnectContext))
        active = vars(ConnectSession)["active"].__func__
        patch(ConnectSession, "active", classmethod(_active(active)))
        patch(ConnectDataFrame, "toPandas", _without_attributes(ConnectDataFrame.toPandas))
        patch(ConnectDataFrame, "rdd", property(functools.partial(_not_available, "rdd")))
        for owner in (ConnectSession, ConnectDataFrame):
            patch(owner, "__getattr__", _explaining(owner.__getattr__))
        patches.callback(_close_sessions)
        yield


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Lets PySpark's functions make Spark Connect's columns, also before there is a session."""
    names = (REMOTE_VARIABLE, MODE_VARIABLE, MASTER_VARIABLE)
    before = {name: os.environ.get(name) for name in names}
    os.environ[MODE_VARIABLE] = "1"
    if os.environ.pop(MASTER_VARIABLE, None):
        _warn(f"{MASTER_VARIABLE} has no effect: {_WHERE}")
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _quiet_errors() -> Iterator[None]:
    """Keeps PySpark from logging each error of a query, which it also raises, as one line of JSON
    with the JVM's stack.
    """
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


_WHERE = "this program's queries run on Firesteel, and its batch queries on the Spark of the run"


class _Sessions:
    def __init__(self, front: Front) -> None:
        self._front = front
        self._named_elsewhere = REMOTE_VARIABLE in os.environ  # by the user

    def creating(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns a method of the builder that starts the front before it creates a session."""

        @functools.wraps(original)
        def create(builder: Any) -> Any:
            options = builder._options
            if (master := options.pop(MASTER, None)) is not None:
                _warn(f".master({master!r}) has no effect: {_WHERE}")
            options.pop("spark.api.mode", None)
            remote = options.get(REMOTE, "")
            if remote.startswith("local"):
                _warn(f".remote({remote!r}) has no effect: {_WHERE}")
                remote = options.pop(REMOTE) and ""
            if remote or self._named_elsewhere:
                return original(builder)
            settings = {key: str(each) for key, each in options.items() if key not in _OF_THE_RUN}
            started = self._front.started
            if not started:
                print("Starting Spark Connect ...", file=sys.stderr, flush=True)
            os.environ[REMOTE_VARIABLE] = self._front.url(settings)
            with warnings.catch_warnings():
                # Settings that Spark reads when it starts cannot be set again.
                warnings.filterwarnings("ignore", message="Failed to set ")
                session = original(builder)
            if started:
                self._warn_of_late(session, settings)
            return session

        return create

    def context(self, kind: type, conf: Any = None) -> ConnectContext:
        """Stands for `SparkContext.getOrCreate`."""
        from pyspark.sql import SparkSession

        builder = SparkSession.builder
        return ConnectContext(
            (builder if conf is None else builder.config(conf=conf)).getOrCreate()
        )

    def _warn_of_late(self, session: Any, settings: Mapping[str, str]) -> None:
        """Names the settings that Spark reads only when it starts, and which have changed."""
        before = self._front.settings
        changed = [key for key, value in settings.items() if before.get(key) != value]
        late = [
            key for key in changed if key != "spark.app.name" and not session.conf.isModifiable(key)
        ]
        if late:
            _warn(
                f"{', '.join(sorted(late))} has no effect: Spark reads it when it starts, with the"
                " first session of the program; set it there"
            )


class ConnectContext:
    """The members of a SparkContext that work with Spark Connect, for a session of it."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __getattr__(self, name: str) -> NoReturn:
        _not_available(f"sparkContext.{name}", self)

    def setLogLevel(self, logLevel: str) -> None:
        """Checks the level. Spark's log is a file of the front, whatever its level is."""
        if str(logLevel).upper() not in _LOG_LEVELS:
            raise FiresteelError(
                f"setLogLevel({logLevel!r}): allowed: {', '.join(map(repr, _LOG_LEVELS))}"
            )

    @property
    def applicationId(self) -> str:
        return str(self._session.conf.get("spark.app.id", "") or self._session.session_id)

    @property
    def appName(self) -> str:
        return str(self._session.conf.get("spark.app.name", ""))

    @property
    def version(self) -> str:
        return str(self._session.version)

    @property
    def master(self) -> str:
        return str(self._session.conf.get(MASTER, ""))

    @property
    def defaultParallelism(self) -> int:
        return int(self._session.conf.get("spark.default.parallelism", None) or os.cpu_count() or 1)

    @property
    def defaultMinPartitions(self) -> int:
        return min(self.defaultParallelism, 2)

    @property
    def uiWebUrl(self) -> str | None:
        return None

    @property
    def pythonVer(self) -> str:
        return f"{sys.version_info.major}.{sys.version_info.minor}"

    def sparkUser(self) -> str:
        return str(self._session.client._user_id or "")

    def getConf(self) -> Any:
        """Returns the settings of the session as a SparkConf."""
        from pyspark import SparkConf

        conf = SparkConf(loadDefaults=False, _jvm=None)
        return conf.setAll(list(self._session.conf.getAll.items()))

    def addFile(self, path: str, recursive: bool = False) -> None:
        self._session.addArtifact(path, file=True)

    def addPyFile(self, path: str) -> None:
        self._session.addArtifact(path, pyfile=True)

    def addArchive(self, path: str) -> None:
        self._session.addArtifact(path, archive=True)

    def setJobGroup(self, *_: Any, **__: Any) -> None:
        """Has no effect: queries are not grouped."""

    setJobDescription = setLocalProperty = setCheckpointDir = setJobGroup

    def cancelAllJobs(self) -> None:
        self._session.interruptAll()

    def stop(self) -> None:
        self._session.stop()


def _active(original: Callable[[type], Any]) -> Callable[[type], Any]:
    """Returns `SparkSession.active` that lets a program define functions before it has a session,
    as it can with a classic session.
    """
    from pyspark.errors import PySparkRuntimeError

    def active(kind: type) -> Any:
        try:
            return original(kind)
        except PySparkRuntimeError as error:
            return _NoSession(error)

    return active


class _NoSession:
    """Parses the types of functions; anything else needs a session."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> NoReturn:
        raise self._error

    def _parse_ddl(self, text: str) -> Any:
        from firesteel.plan.ddl import parse_type

        if (parsed := parse_type(text)) is None:
            raise self._error
        return parsed


def _explaining(original: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """Returns a `__getattr__` that says what replaces members of a JVM in the program's process."""

    def get(self: Any, name: str) -> Any:
        if name in _INSTEAD and (name.startswith("_j") or name == "rdd"):
            _not_available(name, self)
        return original(self, name)

    return get


def _without_attributes(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns frames as a classic session does. Spark Connect adds its metrics to their `attrs`,
    which pandas then fails to write to Parquet.
    """

    @functools.wraps(original)
    def to_pandas(frame: Any) -> Any:
        result = original(frame)
        result.attrs.clear()
        return result

    return to_pandas


def _no_context(self: Any, *_: Any, **__: Any) -> NoReturn:
    raise NotAvailable(
        "SparkContext(...) is not available, because the program runs with Spark Connect: create a"
        " session with SparkSession.builder.getOrCreate(); its sparkContext has setLogLevel,"
        " addPyFile and other members that need no JVM in the program's process"
    )


def _not_available(name: str, _: object) -> NoReturn:
    instead = _INSTEAD.get(name.rpartition(".")[2])
    if instead is None or name.startswith("__"):
        raise NotAvailable(f"{name} is not available, because the program runs with Spark Connect")
    raise NotAvailable(
        f"{name} is not available, because the program runs with Spark Connect: {instead}"
    )


def _close_sessions() -> None:
    """Closes the program's sessions; the end of the front releases them."""
    from pyspark.sql.connect.session import SparkSession

    for session in {SparkSession._default_session, SparkSession.getActiveSession()}:
        if session is None:
            continue
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if hasattr(session, "_sqm"):
                session._sqm.close()  # ends the threads of listeners
            session.release_session_on_close = False
            session.stop()


def _warn(message: str) -> None:
    print(f"Warning: {message}", file=sys.stderr)
