"""Runs the server for Spark Connect of a cluster: `python -m firesteel.spark_connect.serving`.

Its Dispatcher starts it. The JVM with Spark starts with the first call, and ends with this process.
Each session belongs to the bearer of its token, with whose token its queries become jobs. A session
without calls ends after `spark-connect.session-timeout`.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
from pyspark.sql.connect import proto

from firesteel.client.client import Client
from firesteel.client.execution_context import ExecutionContext
from firesteel.common.config import Configuration, options
from firesteel.common.logs import get_logger
from firesteel.common.process import exit_reason
from firesteel.common.security.access import SPARK_CONNECT
from firesteel.common.security.credentials import BEARER
from firesteel.common.security.limits import CallLimits
from firesteel.common.security.roles import Identity, Role
from firesteel.common.security.security import Security
from firesteel.common.service.host import ServiceProcess, service_main
from firesteel.errors import FiresteelError
from firesteel.high_availability import elected, elected_address
from firesteel.spark_connect.admission import HOW_TO, NotAdmitted, NotAllowed, Sessions
from firesteel.spark_connect.archive import archive_options
from firesteel.spark_connect.front import Front, SparkServer
from firesteel.spark_connect.operations import Operation, SessionKey
from firesteel.spark_connect.pipelines import AnsweredCommands, Pipelines
from firesteel.spark_connect.queries import StreamingQueries
from firesteel.spark_connect.spark import Spark
from firesteel.spark_connect.starter import JobStarter

JVM_ENDS_S = 2.0  # after its connection is lost
LOOK_EVERY_S = 10.0  # for sessions that have ended
_SETTINGS = {"spark.ui.showConsoleProgress": "false", "spark.app.name": "Firesteel"}

log = get_logger(__name__)


@service_main(
    "spark-connect", role=Role.REST, directory="temporary", port=options.SPARK_CONNECT_PORT
)
@click.option(
    "--dispatcher",
    default="",
    metavar="HOST:PORT",
    help="The Dispatcher that runs its jobs, unless it is elected.",
)
async def main(process: ServiceProcess, dispatcher: str) -> None:
    """Spark Connect: analyses PySpark programs, and runs their streaming queries as jobs. Its
    Dispatcher starts it.
    """
    # Python functions of batch queries, which this process starts, do not get them.
    for name in process.conf.to_environment():
        os.environ.pop(name, None)
    address = elected_address(process.conf) if elected(process.conf) else dispatcher
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    process.on_stop(lambda signal_name: stopping.set())
    lost: list[str] = []

    def lose(reason: str) -> None:
        lost.append(reason)
        loop.call_soon_threadsafe(stopping.set)

    serving = Serving(process.conf, process.security, address, process.directory, lose)
    front = serving.front(process.host, process.port)
    front.start()
    process.announce_ready(address=f"{process.host}:{front.port}")
    ending = asyncio.create_task(serving.end_unused())
    await stopping.wait()
    ending.cancel()
    await asyncio.to_thread(front.stop)
    await asyncio.to_thread(serving.close)
    if lost:
        raise FiresteelError(lost[0])


class Serving:
    """Answers the commands of all sessions. `lose` is called when the JVM has ended."""

    def __init__(
        self,
        conf: Configuration,
        security: Security | None,
        address: str,
        folder: Path,
        lose: Callable[[str], None],
    ) -> None:
        self._security = security
        self._conf = Configuration(conf.for_jobs())
        self._address = address
        self._spark = Spark({**_SETTINGS, **conf.spark()}, folder, archive_options())
        self._lose = lose
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._server: SparkServer | None = None
        self._contexts: dict[SessionKey, ExecutionContext] = {}
        self._ending: set[SessionKey] = set()  # with the rights of this process
        self._caller = threading.local()  # its `token` is the one that this thread records
        self._audit: Client | None = None
        if security is None:
            self._sessions = Sessions(None)
        else:
            self._audit = Client(
                address, conf=conf, token=lambda: getattr(self._caller, "token", "")
            )
            self._sessions = Sessions(self._identify, check_role, self._record, CallLimits(conf))
        starter = JobStarter(self._spark, self._context)
        self._commands = AnsweredCommands(
            StreamingQueries(starter), Pipelines(self._spark, starter, self._context)
        )
        self._timeout_s: float = conf.get(options.SPARK_CONNECT_SESSION_TIMEOUT)

    def front(self, host: str, port: int) -> Front:
        security = self._security
        return Front(
            self._sessions,
            self._started,
            self,
            self._why_lost,
            host=host,
            port=port,
            credentials=security.server_credentials(certified=False) if security else None,
        )

    def handler(self, command: proto.Command) -> Callable[[Operation], None] | None:
        self._started()
        return self._commands.handler(command)

    def before(self, session: SessionKey, plan: proto.Plan) -> None:
        self._started()
        self._commands.before(session, plan)

    def release(self, session: SessionKey) -> None:
        """Stops the queries of a session that ends."""
        self._commands.release(session)
        self._sessions.forget(session)
        with self._lock:
            context = self._contexts.pop(session, None)
        if context is not None:
            context.close()

    async def end_unused(self) -> None:
        """Ends sessions without calls."""
        while True:
            await asyncio.sleep(min(LOOK_EVERY_S, self._timeout_s / 2))
            for session in self._sessions.unused(self._timeout_s):
                log.info("a session without calls ends", session_id=session.session_id)
                try:
                    await asyncio.to_thread(self._end, session)
                except Exception:
                    log.exception("a session did not end", session_id=session.session_id)

    def close(self) -> None:
        """Ends the JVM. Jobs keep running."""
        self._closing.set()
        self._spark.stop()

    def _end(self, session: SessionKey) -> None:
        """Ends a session with the rights of this process: its user's token may have expired."""
        self._ending.add(session)
        try:
            self.release(session)
        finally:
            self._ending.discard(session)
        self._spark.close_session(session.user_id, session.session_id)

    def _started(self) -> SparkServer:
        """Returns the server in the JVM, which the first call starts."""
        with self._lock:
            if self._server is None:
                self._spark.start()
                self._server = SparkServer(self._spark.address, self._spark.token)
                threading.Thread(target=self._watch, name="jvm", daemon=True).start()
            return self._server

    def _watch(self) -> None:
        code = self._spark.exit_code()
        if code is not None and not self._closing.is_set():
            self._lose(f"the JVM of Spark Connect has ended with {exit_reason(code)}")

    def _why_lost(self) -> str:
        code = self._spark.exit_code(JVM_ENDS_S)
        if code is None:
            return ""
        return (
            f"the JVM of Spark Connect has ended with {exit_reason(code)}, and its sessions with"
            " it; create a new session; spark.driver.memory decides how much memory it has"
        )

    def _identify(self, authorization: str) -> Identity:
        assert self._security is not None
        try:
            return self._security.identify(authorization)
        except FiresteelError as error:
            raise NotAdmitted(f"{error}; {HOW_TO}") from None

    def _record(self, authorization: str, peer: str) -> None:
        """Records the caller in the audit log, of which the Dispatcher is in charge: it sees the
        same token, and comes to the same decision.
        """
        assert self._audit is not None and self._security is not None
        self._caller.token = authorization.removeprefix(BEARER)
        try:
            self._audit.record_program(peer, voucher=self._security.token())
        except FiresteelError as error:
            log.info("the Dispatcher refuses the caller", peer=peer, reason=str(error))

    def _token(self, session: SessionKey) -> str:
        if session in self._ending and self._security is not None:
            return self._security.token()
        return self._sessions.token(session)

    def _context(self, session: SessionKey) -> ExecutionContext:
        """Returns how queries of a session run: as jobs of its owner."""
        with self._lock:
            if session not in self._contexts:
                self._contexts[session] = ExecutionContext(
                    mode="remote",
                    conf=self._conf,
                    address=self._address,
                    token=partial(self._token, session),
                )
            return self._contexts[session]


def check_role(identity: Identity) -> None:
    """Raises NotAllowed for somebody who may not run functions on the cluster."""
    if not SPARK_CONNECT.allows(identity):
        raise NotAllowed(f"{identity} may not use Spark Connect, which is for: {SPARK_CONNECT}")


if __name__ == "__main__":
    main()
