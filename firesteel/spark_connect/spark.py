"""The front's JVM: Spark with its own Spark Connect server, whose sessions are accessible here.

The server analyses programs and runs their batch queries. The planner analyses streaming queries
in the same sessions, so that it sees their temporary views, functions and configuration.
"""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError

from firesteel.errors import FiresteelError
from firesteel.plan.catalyst_plan import items, scala_entries
from firesteel.plan.java_calls import hasten
from firesteel.spark_connect.added_columns import keep_event_times
from firesteel.spark_connect.java_options import java_options
from firesteel.spark_connect.outer_frames import local_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_JAVA_OPTIONS = "spark.driver.defaultJavaOptions"
_USERS = (_JAVA_OPTIONS, "spark.driver.extraJavaOptions")
_PLUGIN = "org.apache.spark.sql.connect.SparkConnectPlugin"
# With these, PySpark would create sessions of Spark Connect in this process.
_REMOTE_VARIABLES = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_CONNECT_MODE")


class Spark:
    """A classic SparkSession with a Spark Connect server in its JVM. One per process.

    `settings` are Spark's; those that the server needs take precedence. The JVM keeps its files
    below `folder`, which the caller removes: a JVM that is killed leaves them. `archive_options`
    are the JVM's for its class archive.
    """

    def __init__(
        self,
        settings: Mapping[str, str],
        folder: Path,
        archive_options: Sequence[str] = (),
    ) -> None:
        self.token = secrets.token_urlsafe(24)
        self._modifiable: set[str] = set()  # settings of Spark SQL that sessions may change
        self._settings = {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": str(folder),
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
            "spark.master": f"local[{os.cpu_count() or 1}]",
            **settings,
            _JAVA_OPTIONS: shlex.join(
                java_options(
                    folder,
                    os.cpu_count() or 1,
                    archive_options,
                    [word for key in _USERS for word in shlex.split(settings.get(key, ""))],
                )
            )
            + f" {settings.get(_JAVA_OPTIONS, '')}",
            "spark.connect.session.manager.defaultSessionTimeout": "-1",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.connect.authenticate.token": self.token,
        }
        plugins = {_PLUGIN, *filter(None, settings.get("spark.plugins", "").split(","))}
        self._settings["spark.plugins"] = ",".join(sorted(plugins))
        self._session: SparkSession | None = None
        self._preparing = threading.Lock()
        self._prepared: set[tuple[str, str]] = set()

    def start(self) -> None:
        """Starts the JVM and the server. Raises FiresteelError if that fails."""
        from pyspark.sql import SparkSession

        for name in _REMOTE_VARIABLES:
            os.environ.pop(name, None)
        # Python functions of queries run with it, here and in slots.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = SparkSession.builder
        for key, value in self._settings.items():
            builder = builder.config(key, value)
        try:
            self._session = builder.getOrCreate()
        except Exception as error:
            raise FiresteelError(f"Spark Connect did not start: {error}") from error
        context: Any = self._session.sparkContext
        hasten(context._gateway._gateway_client)
        context.setLogLevel("ERROR")

    def stop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            gateway: Any = session.sparkContext._gateway
            session.stop()
            gateway.proc.stdin.close()  # which ends the JVM
            gateway.proc.wait()

    def exit_code(self, timeout_s: float | None = None) -> int | None:
        """Waits for the end of the JVM, for at most this time; None if it still runs, or was
        stopped.
        """
        if self._session is None:
            return None
        try:
            gateway: Any = self._session.sparkContext._gateway
            code: int = gateway.proc.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return code

    @property
    def address(self) -> str:
        """The server's host and port."""
        return f"127.0.0.1:{self._service_object.localPort()}"

    @property
    def jvm(self) -> Any:
        if self._session is None:
            raise FiresteelError("Spark Connect is not running")
        return self._session._jvm

    def holder(self, user_id: str, session_id: str) -> Any:
        """Returns the SessionHolder of a session of the server, which is created if necessary."""
        nothing = self.jvm.scala.Option.apply(None)
        return self._service.getOrCreateIsolatedSession(user_id, session_id, nothing)

    def prepare(self, user_id: str, session_id: str) -> None:
        """Registers Firesteel's data sources in a session, if it is new."""
        from firesteel.spark_connect.kafka_table import register

        key = user_id, session_id
        with self._preparing:
            if key not in self._prepared:
                with self.active(user_id, session_id):
                    register(self._classic(user_id, session_id))
                self._prepared.add(key)

    def close_session(self, user_id: str, session_id: str) -> None:
        """Ends a session of the server, if it exists."""
        key = self.jvm.org.apache.spark.sql.connect.service.SessionKey(user_id, session_id)
        self._service_object.sessionManager().closeSession(key, False)
        with self._preparing:
            self._prepared.discard((user_id, session_id))

    def settings(self, user_id: str, session_id: str) -> dict[str, str]:
        """Returns the settings of Spark SQL that a session has, and may change."""
        conf = self.holder(user_id, session_id).session().conf()
        return {
            key: value
            for key, value in scala_entries(conf.getAll()).items()
            if key.startswith("spark.sql.") and self._is_modifiable(conf, key)
        }

    def _is_modifiable(self, conf: Any, key: str) -> bool:
        if key not in self._modifiable and conf.isModifiable(key):  # a package may define it later
            self._modifiable.add(key)
        return key in self._modifiable

    def create_view(
        self, user_id: str, session_id: str, name: str, rows: pa.Table, schema: StructType
    ) -> None:
        """Creates or replaces a temporary view of these rows in a session. The columns of `rows`
        have unique names; those of the view have the names of `schema`.
        """
        session = self._classic(user_id, session_id)
        local_frame(session, rows, schema).createOrReplaceTempView(name)

    def analyzed(self, user_id: str, session_id: str, relation: bytes) -> Any:
        """Returns the analysed Catalyst plan of a serialised `Relation` in a session.

        Raises Py4JJavaError if the analysis fails, as the server does for the same relation.
        """
        jvm = self.jvm
        holder = self.holder(user_id, session_id)
        planner = jvm.org.apache.spark.sql.connect.planner.SparkConnectPlanner(
            holder, jvm.scala.Option.apply(None)
        )
        with self._active(holder):
            plan = planner.transformRelation(
                jvm.org.apache.spark.connect.proto.Relation.parseFrom(relation)
            )
            rows = jvm.org.apache.spark.sql.classic.Dataset.ofRows(holder.session(), plan)
            return rows.queryExecution().analyzed()

    def keep_event_times(self, user_id: str, session_id: str, message: Any) -> None:
        """Lets the columns that a message of Spark Connect adds to streams keep their event
        times.
        """

        def names_of(relation: bytes) -> list[str] | None:
            try:
                plan = self.analyzed(user_id, session_id, relation)
            except Py4JJavaError:  # as Spark itself reports for the message
                return None
            return [each.name() for each in items(plan.output())] if plan.isStreaming() else None

        conf = self.holder(user_id, session_id).session().sessionState().conf()
        keep_event_times(message, names_of, case_sensitive=bool(conf.caseSensitiveAnalysis()))

    def rows(self, user_id: str, session_id: str, plan: Any) -> pa.Table:
        """Runs an analysed plan without streams in a session. Returns its rows."""
        from pyspark.sql.classic.dataframe import DataFrame

        session: Any = self._classic(user_id, session_id)
        dataset = self.jvm.org.apache.spark.sql.classic.Dataset
        return DataFrame(dataset.ofRows(session._jsparkSession, plan), session).toArrow()

    def _classic(self, user_id: str, session_id: str) -> SparkSession:
        """Returns a session of the server as PySpark's classic API sees it."""
        from pyspark.sql import SparkSession

        assert self._session is not None
        own = self.holder(user_id, session_id).session()
        return SparkSession(self._session.sparkContext, own)

    def active(self, user_id: str, session_id: str) -> AbstractContextManager[None]:
        """Makes a session of the server that of the thread."""
        return self._active(self.holder(user_id, session_id))

    @contextmanager
    def _active(self, holder: Any) -> Iterator[None]:
        """Makes a session, and the classes that its program has added, those of the thread."""
        thread = self.jvm.java.lang.Thread.currentThread()
        sessions = self.jvm.org.apache.spark.sql.classic.SparkSession
        before = thread.getContextClassLoader()
        thread.setContextClassLoader(holder.classloader())
        sessions.setActiveSession(holder.session())
        try:
            yield
        finally:
            sessions.clearActiveSession()
            thread.setContextClassLoader(before)

    @property
    def _service_object(self) -> Any:
        """Scala's object, which has methods without a static one in Java's class."""
        module = getattr(self.jvm.org.apache.spark.sql.connect.service, "SparkConnectService$")
        return getattr(module, "MODULE$")

    @property
    def _service(self) -> Any:
        return self.jvm.org.apache.spark.sql.connect.service.SparkConnectService


@dataclass(frozen=True, slots=True)
class LocalRows:
    """Rows that slots hold."""

    rows: pa.Table

    def __call__(self, spark: SparkSession) -> DataFrame:
        return spark.createDataFrame(self.rows)
