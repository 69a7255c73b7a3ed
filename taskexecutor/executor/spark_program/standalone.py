"""The settings and the commands of the processes of Spark Standalone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from firesteel.common.process.class_archive import spark_home
from firesteel.common.process.java import java_home
from firesteel.common.units import MIB, mib
from firesteel.errors import FiresteelError
from taskexecutor.executor.columnar.jvm.archive import ArchivedStart
from taskexecutor.executor.columnar.jvm.launch import class_path

MASTER, EXECUTOR_MEMORY, EXECUTOR_CORES, DRIVER_MEMORY = (
    "spark.master",
    "spark.executor.memory",
    "spark.executor.cores",
    "spark.driver.memory",
)
# Spark refuses a heap of less than 450 MiB, of which a JVM reports less than its -Xmx.
LEAST_HEAP_BYTES = 480 * MIB
LOG_CONFIGURATION = "log4j2.properties"
_MASTER_CLASS = "org.apache.spark.deploy.master.Master"
_WORKER_CLASS = "org.apache.spark.deploy.worker.Worker"
# A master and a worker only exchange messages about processes.
_JVM_OPTIONS = (
    *("-Xmx128m", "-Xms16m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    *("-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError", "-Djava.net.preferIPv4Stack=true"),
)
_LOG_CONFIGURATION = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}{UTC} %p spark %c{1}: %m%n%ex
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
# When the program has ended, executors lose the master, and would show the stack of each attempt to
# find it.
logger.worker.name = org.apache.spark.deploy.worker.Worker
logger.worker.level = error
"""
_SIZE = re.compile(r"(\d+)\s*([kmgtp]?)b?", re.IGNORECASE)
_FACTORS = {"k": 1 / 1024, "": 1, "m": 1, "g": 1024, "t": 1024**2, "p": 1024**3}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotShare:
    """The part of a slot that its driver or executor may use."""

    cores: int
    memory_mib: int

    @classmethod
    def of(cls, *, cores: int, heap_bytes: int) -> SlotShare:
        """Raises FiresteelError if Spark does not start with this heap."""
        if heap_bytes < LEAST_HEAP_BYTES:
            raise FiresteelError(
                f"the slots have a heap of {mib(heap_bytes)}, and a driver or an executor of Spark"
                f" needs {mib(LEAST_HEAP_BYTES)} or more: raise taskmanager.slot.heap.size"
            )
        return cls(cores=cores, memory_mib=heap_bytes // MIB)


def memory_mib(text: str) -> int | None:
    """Parses a size of Spark, in MiB if it has no unit; None if it is not one."""
    found = _SIZE.fullmatch(text.strip())
    return None if found is None else int(int(found[1]) * _FACTORS[found[2].lower()])


def limited(settings: Mapping[str, str], share: SlotShare) -> tuple[dict[str, str], list[str]]:
    """Returns the settings that exceed the slot, with the values to use instead, and a sentence
    about each.
    """
    instead: dict[str, str] = {}
    warnings = []
    for key in (DRIVER_MEMORY, EXECUTOR_MEMORY):
        asked = memory_mib(settings[key]) if key in settings else None
        if asked is not None and asked > share.memory_mib:
            instead[key] = f"{share.memory_mib}m"
    cores = settings.get(EXECUTOR_CORES, "")
    if cores.isdecimal() and int(cores) > share.cores:
        instead[EXECUTOR_CORES] = str(share.cores)
    for key, value in instead.items():
        warnings.append(f"{key} is {value}, what a slot has, instead of {settings[key]}")
    return instead, warnings


def settings_of_driver(
    own: Mapping[str, str], share: SlotShare, *, master: str, secret: str, host: str
) -> dict[str, str]:
    """Returns the settings of the program's Spark, with `own`, those of the job."""
    memory = f"{share.memory_mib}m"
    return {
        DRIVER_MEMORY: memory,
        EXECUTOR_MEMORY: memory,
        "spark.driver.host": host,
        "spark.ui.port": "0",
        "spark.ui.showConsoleProgress": "false",
        "spark.decommission.enabled": "true",
        **own,
        **limited(own, share)[0],
        MASTER: master,
        **authentication(secret),
    }


def settings_of_master(secret: str) -> dict[str, str]:
    return {
        # The job's restart strategy decides how often an executor is replaced.
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.master.rest.enabled": "false",
        "spark.ui.killEnabled": "false",
        "spark.port.maxRetries": "0",  # the executors know the port
        **authentication(secret),
    }


def settings_of_worker(secret: str) -> dict[str, str]:
    return {
        "spark.decommission.enabled": "true",
        "spark.ui.killEnabled": "false",
        **authentication(secret),
    }


def authentication(secret: str) -> dict[str, str]:
    return {"spark.authenticate": "true", "spark.authenticate.secret": secret}


def write_configuration(folder: Path, settings: Mapping[str, str]) -> None:
    """Writes SPARK_CONF_DIR, which other users cannot read."""
    folder.mkdir(mode=0o700)
    lines = (f"{_escaped(key)} = {_escaped(value)}\n" for key, value in settings.items())
    (folder / "spark-defaults.conf").write_text("".join(lines), encoding="utf-8")
    (folder / LOG_CONFIGURATION).write_text(_LOG_CONFIGURATION)


def _escaped(text: str) -> str:
    """Returns text that java.util.Properties reads as it is."""
    special = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
    return "".join(special.get(c, f"\\{c}" if c in "\\=:#! " else c) for c in text)


def environment(
    inherited: Mapping[str, str],
    *,
    configuration: Path,
    scratch: Path,
    host: str,
    python: str,
    python_paths: Sequence[str],
) -> dict[str, str]:
    """Returns the environment of a process of Spark in a slot."""
    kept = {
        name: value
        for name, value in inherited.items()
        if name not in ("PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
    }
    search_path = [*python_paths, kept.get("PYTHONPATH", "")]
    return {
        **kept,
        "JAVA_HOME": java_home(),
        "SPARK_HOME": str(spark_home()),
        "SPARK_SCALA_VERSION": scala_version(spark_home() / "jars"),
        "SPARK_CONF_DIR": str(configuration),
        "SPARK_LOCAL_DIRS": str(scratch),
        "SPARK_LOCAL_IP": host,
        "SPARK_PUBLIC_DNS": host,
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "PYTHONPATH": ":".join(path for path in search_path if path),
        "MALLOC_ARENA_MAX": "2",
    }


def scala_version(jars: Path) -> str:
    """Returns the version of Scala that Spark is built for, which its scripts set otherwise."""
    found = (re.fullmatch(r"spark-core_([\d.]+)-.*\.jar", jar.name) for jar in jars.glob("*.jar"))
    return next((match[1] for match in found if match is not None), "")


def master_command(
    archived: ArchivedStart, configuration: Path, *, host: str, port: int
) -> list[str]:
    arguments = ["--host", host, "--port", str(port), "--webui-port", "0"]
    return [*_java(archived, configuration), _MASTER_CLASS, *arguments]


def worker_command(
    archived: ArchivedStart,
    configuration: Path,
    *,
    host: str,
    share: SlotShare,
    folder: Path,
    master: str,
) -> list[str]:
    arguments = [
        *("--host", host, "--port", "0", "--webui-port", "0"),
        *("--cores", str(share.cores), "--memory", f"{share.memory_mib}m"),
        *("--work-dir", str(folder), master),
    ]
    return [*_java(archived, configuration), _WORKER_CLASS, *arguments]


def _java(archived: ArchivedStart, configuration: Path) -> list[str]:
    return [
        str(Path(java_home()) / "bin" / "java"),
        *_JVM_OPTIONS,
        *archived.jvm_options,
        f"-Dlog4j2.configurationFile={configuration / LOG_CONFIGURATION}",
        "-cp",
        class_path("", archived.jars),
    ]
