"""Starts the JVM of a slot's SparkSession, if possible without spark-submit's launcher, which is a
second JVM.

Measures for a fast start and a small process:

* an archive of loaded classes (see `archive`), mapped instead of parsed and shared by all slots of
  the machine;
* the serial collector on small slots, with a heap that starts small and shrinks again;
* no jars on the class path that only a Spark cluster needs: the JVM keeps the directories of all
  jars in memory;
* less work for the optimising compiler;
* a lower priority for the optimising compiler's thread, and the lowest during the start if it can
  be raised again: methods that are called often during a start are not those that jobs call often.

The JVM ends when its standard input is closed, so it never outlives this process.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from firesteel.common.logs import get_logger
from firesteel.common.process.class_archive import spark_home
from firesteel.common.process.java import java_home
from firesteel.common.units import MIB
from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar.jvm import gateway

log = get_logger(__name__)

OWN_JAR = "firesteel.jar"  # see `archive`
START_TIMEOUT_S = 150.0
_COMPILER_NICENESS = 5
_WAITING_NICENESS = 19
_COMPILER_THREAD = "C2 Compiler"
_TRIM_INTERVAL_MS = 2_000


class FreeHeap(NamedTuple):
    """The percentage of the heap that a full collection leaves free."""

    least: int
    most: int


# Whenever the heap has to grow, all of it is collected first. Therefore it grows in large steps,
# and is shrunk while the slot is idle (`SparkEngine.collect_garbage`).
HEAP_FREE = FreeHeap(25, 50)

# The same as in org.apache.spark.launcher.JavaModuleOptions.
_OPENED_PACKAGES = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio",
    "java.util", "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref",
    "sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar",
)  # fmt: skip
_MODULE_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED_PACKAGES),
)

# Spark's jars for resource managers, shells and servers.
_OF_CLUSTERS = (
    "hive-beeline-*.jar", "hive-cli-*.jar", "jline-*.jar", "kubernetes-*.jar",
    "scala-compiler-*.jar", "spark-connect_*.jar", "spark-hive-thriftserver_*.jar",
    "spark-kubernetes_*.jar", "spark-pipelines_*.jar", "spark-repl_*.jar", "spark-yarn_*.jar",
    "vertx-*.jar", "volcano-*.jar", "zjsonpatch-*.jar",
)  # fmt: skip

# Four times the JVM's default for methods. Most methods that a job calls some thousand times are
# not called again, since it plans once; optimising them takes as long as the rest of a short job.
# Methods that run for each row reach any threshold immediately.
#
# And a hundred times the default for loops; a plan has one loop over all its rows. Optimising it
# takes 0.2 to 0.5 s of CPU, because it is done for the running loop and for the next bundle's, and
# again when rows take a new branch. Until then a row takes 15 to 70 ns more: some millions of rows
# cost the same. They are counted over all jobs that use the plan.
_COMPILER_OPTIONS = (
    "-XX:Tier4InvocationThreshold=20000",
    "-XX:Tier4MinInvocationThreshold=2400",
    "-XX:Tier4CompileThreshold=60000",
    "-XX:Tier4BackEdgeThreshold=4000000",
)

_LOG_CONFIGURATION = """\
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}}{{UTC}} %p spark %c{{1}}: %m%n%ex
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.metadata.name = org.apache.spark.sql.execution.streaming.sinks.FileStreamSink
logger.metadata.level = error
"""

# Settings that only SparkSubmit handles: with any of them, SparkSubmit starts the gateway.
_SUBMIT_PREFIXES = (
    "spark.jars",
    "spark.submit",
    "spark.kubernetes",
    "spark.yarn",
    "spark.archives",
    "spark.files",
)


@dataclass(slots=True)
class Jvm:
    """A running JVM and its Py4J gateway."""

    process: subprocess.Popen[bytes]
    gateway: Any

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self, grace_s: float) -> None:
        """Closes the JVM's standard input, which makes it exit; kills it after `grace_s`."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            if grace_s > 0:
                log.warning(
                    "a JVM did not exit in time and is killed",
                    pid=self.process.pid,
                    after_s=grace_s,
                )
            self.process.kill()
            self.process.wait()


def class_path(extra: str = "", copies: Path | None = None, *, local: bool = True) -> str:
    """Returns Spark's jars in a fixed order, and `extra` last, because the class archive depends on
    the order.

    A jar of the same name in the folder `copies` replaces Spark's; the Firesteel jar is the first.
    Jars that a `local` Spark does not need come last.
    """
    folder = spark_home() / "jars"
    of_clusters = {jar for pattern in _OF_CLUSTERS for jar in folder.glob(pattern)}
    jars = sorted({*folder.glob("*.jar")} - of_clusters)
    if not local:
        jars += sorted(of_clusters)
    found = {copy.name: copy for copy in copies.glob("*.jar")} if copies is not None else {}
    paths = [str(found.get(jar.name, jar)) for jar in jars]
    if OWN_JAR in found:
        paths.insert(0, str(found[OWN_JAR]))
    return ":".join([*paths, *([extra] if extra else [])])


def jvm_options(*, cores: int, heap_bytes: int) -> list[str]:
    collector = (
        ["-XX:+UseSerialGC"]
        if cores <= 2
        else ["-XX:+UseParallelGC", f"-XX:ParallelGCThreads={cores}"]
    )
    start_heap_bytes = min(heap_bytes, 64 * MIB)  # enough for the start without a full collection
    return [
        f"-Xmx{heap_bytes}",
        f"-Xms{start_heap_bytes}",
        *collector,
        # Free memory beyond that returns to the system immediately.
        f"-XX:MinHeapFreeRatio={HEAP_FREE.least}",
        f"-XX:MaxHeapFreeRatio={HEAP_FREE.most}",
        "-XX:-ShrinkHeapInSteps",
        "-XX:NewRatio=4",  # the young generation never returns touched memory
        f"-XX:TrimNativeHeapInterval={_TRIM_INTERVAL_MS}",
        "-Xss1m",
        "-XX:-UsePerfData",
        # A JVM that has run out of memory is unreliable; one that has ended is replaced.
        "-XX:+ExitOnOutOfMemoryError",
        # Call sites that are called a few times need no separate classes.
        "-Djava.lang.invoke.MethodHandle.COMPILE_THRESHOLD=20",
        "-Dsun.reflect.inflationThreshold=1000",
        "-Djava.net.preferIPv4Stack=true",
        "-Djava.awt.headless=true",
        "-Dio.netty.jfr.enabled=false",  # otherwise Netty starts the flight recorder
    ]


def start_jvm(
    spark_conf: Mapping[str, str],
    *,
    cores: int,
    heap_bytes: int,
    temp_dir: Path,
    archive_options: Sequence[str] = (),
    jar_copies: Path | None = None,
    log_level: str = "warn",
) -> Jvm:
    """Starts the JVM and connects to it. It logs to this process's standard error.

    Raises FiresteelError if it ends or does not respond.
    """
    log_configuration = temp_dir / "log4j2.properties"
    log_configuration.write_text(_LOG_CONFIGURATION.format(level=log_level))
    connection_file = temp_dir / "gateway"
    extra_options = shlex.split(spark_conf.get("spark.driver.extraJavaOptions", ""))
    command = [
        str(Path(java_home()) / "bin" / "java"),
        *jvm_options(cores=cores, heap_bytes=heap_bytes),
        *archive_options,
        *_MODULE_OPTIONS,
        *_COMPILER_OPTIONS,
        f"-Dlog4j2.configurationFile={log_configuration}",
        f"-Djava.io.tmpdir={temp_dir}",
        f"-Dderby.system.home={temp_dir}",
        *extra_options,
        "-cp",
        class_path(
            spark_conf.get("spark.driver.extraClassPath", ""), jar_copies, local=_local(spark_conf)
        ),
        *_main(spark_conf),
    ]
    environment = {
        **os.environ,
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection_file),
        "SPARK_CONNECT_MODE": "0",
        "SPARK_HOME": str(spark_home()),
        "MALLOC_ARENA_MAX": "2",  # keeps native memory close to what is used
    }
    if "spark.local.dir" not in spark_conf:
        environment["SPARK_LOCAL_DIRS"] = str(temp_dir)
    if _local(spark_conf):
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Its standard output also goes to the slot's log.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=2, env=environment)
    try:
        server = await_gateway(process, connection_file)
        return Jvm(process, gateway.connect(process, server.port, server.secret))
    except BaseException:
        process.kill()
        process.wait()
        raise


@contextlib.contextmanager
def compiler_waiting(pid: int) -> Iterator[None]:
    """Lets the JVM's optimising compiler run only when the machine is otherwise idle. Has no effect
    if this process may not raise a priority again, because a compiler that stays at the lowest
    priority would leave jobs with slow code.
    """
    if not _may_raise_priority():
        yield
        return
    _set_compiler_niceness(pid, _WAITING_NICENESS)
    try:
        yield
    finally:
        _set_compiler_niceness(pid, _COMPILER_NICENESS)


def _may_raise_priority() -> bool:
    """Returns whether a thread of this process that lowers its priority can raise it again: with
    CAP_SYS_NICE, or a limit (RLIMIT_NICE) that allows it. Tries it, on a temporary thread.
    """
    with ThreadPoolExecutor(1, "priority") as thread:
        return thread.submit(_lower_and_raise).result()


def _lower_and_raise() -> bool:
    """Lowers the priority of the calling thread, Linux's unit of priority, and raises it again."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _WAITING_NICENESS)
        os.setpriority(os.PRIO_PROCESS, 0, _COMPILER_NICENESS)
    except OSError:
        return False
    return True


def _set_compiler_niceness(pid: int, niceness: int) -> bool:
    """Returns False if the JVM has not started its optimising compiler yet."""
    found = False
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):  # a thread that has ended
            if (thread / "comm").read_text().startswith(_COMPILER_THREAD):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), niceness)
                found = True
    return found


def _local(spark_conf: Mapping[str, str]) -> bool:
    return spark_conf.get("spark.master", "").startswith("local")


def _main(spark_conf: Mapping[str, str]) -> list[str]:
    if _local(spark_conf) and not any(key.startswith(_SUBMIT_PREFIXES) for key in spark_conf):
        return ["org.apache.spark.api.python.PythonGatewayServer"]
    settings = [word for key, value in spark_conf.items() for word in ("--conf", f"{key}={value}")]
    return ["org.apache.spark.deploy.SparkSubmit", *settings, "pyspark-shell"]


class GatewayServer(NamedTuple):
    port: int
    secret: str  # to present when connecting


def await_gateway(process: subprocess.Popen[bytes], path: Path) -> GatewayServer:
    """Waits for the file that the JVM renames to `path` once its gateway listens."""
    deadline = time.monotonic() + START_TIMEOUT_S
    compiler_lowered = False
    while not path.exists():
        if process.poll() is not None:
            raise FiresteelError(
                f"the slot's Java ended with code {process.returncode} while it started; "
                "see the slot's log for the cause"
            )
        if time.monotonic() > deadline:
            raise FiresteelError(
                f"the slot's Java did not respond within {START_TIMEOUT_S:g} s; "
                "see the slot's log for the cause"
            )
        time.sleep(0.01)
        compiler_lowered = compiler_lowered or _set_compiler_niceness(
            process.pid, _COMPILER_NICENESS
        )
    content = path.read_bytes()
    port, length = struct.unpack_from(">ii", content)
    return GatewayServer(port, content[8 : 8 + length].decode())
