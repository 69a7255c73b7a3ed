"""Rules for every test session: nothing that a test started is left when the session ends."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hypothesis import HealthCheck, settings

from tests.long import HYPOTHESIS_PROFILE, fewer, mark_as_long
from tests.postgres import Postgres

if TYPE_CHECKING:
    from tests.kafka.broker import Kafka
    from tests.object_store import ObjectStore
    from tests.zookeeper import ZooKeeper

# Neither a busy machine nor an unlucky draw fails a test: no example has a time limit, and each
# run has the same ones, a third of them (see `fewer`). HYPOTHESIS_PROFILE=all has all of them,
# HYPOTHESIS_PROFILE=explore as many others. Examples share their test's fixtures, and clean up
# themselves.
_HEALTH = [
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.filter_too_much,
    HealthCheck.function_scoped_fixture,
]
settings.register_profile(
    "explore", deadline=None, suppress_health_check=_HEALTH, max_examples=fewer(100)
)
settings.register_profile("all", settings.get_profile("explore"), derandomize=True)
settings.register_profile("same", settings.get_profile("all"))
settings.load_profile(HYPOTHESIS_PROFILE)

# The tests' JVMs live for seconds: what the quick compiler makes is good enough, and their starts
# and first plans take half of the CPU time. All of its code must have room.
os.environ["JDK_JAVA_OPTIONS"] = " ".join(
    [
        "-XX:TieredStopAtLevel=1",
        "-XX:ReservedCodeCacheSize=240m",
        os.environ.get("JDK_JAVA_OPTIONS", ""),
    ]
).strip()

# Tests start some hundred processes: each would compile all of its modules again, and each
# session rewrite all tests.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

MARK = (
    "FIRESTEEL_TEST_SESSION"  # in the environment of every process that a test starts, however deep
)
GRACE_S = 30.0  # on a busy machine, a process may take this long to end


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_as_long(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Iterator[Any]:
    """Describes a failure while no garbage is collected. A finalizer that formats a traceback would
    crash pytest, and leave threads that keep the process alive (CPython issue 106905).
    """
    if call.excinfo is None:
        return (yield)
    gc.collect()
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def no_leaks() -> Iterator[None]:
    """Fails the session if processes (JVMs included, also orphaned ones) or non-daemon threads
    outlive it.
    """
    mark = uuid.uuid4().hex
    os.environ[MARK] = mark
    threads_before = set(threading.enumerate())
    yield
    deadline = time.monotonic() + GRACE_S
    while (leaked := _processes(mark) or _threads(threads_before)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if not leaked:
        return
    processes = _processes(mark)
    report = [f"process {process.pid}: {_command(process)}" for process in processes]
    report += [f"thread {thread.name}" for thread in _threads(threads_before)]
    for process in processes:
        _kill(process)
    if report:
        pytest.fail("tests left behind:\n  " + "\n  ".join(report), pytrace=False)


@pytest.fixture(scope="session")
def postgres(no_leaks: None) -> Iterator[str]:
    """The URL of a PostgreSQL of this session's own, on a Unix socket."""
    server = Postgres()
    try:
        yield server.url
    finally:
        server.close()


@pytest.fixture(scope="session")
def zookeeper(no_leaks: None) -> Iterator[ZooKeeper]:
    """An ensemble of three servers; a test that stops some starts them again."""
    from tests.zookeeper import ZooKeeper

    servers = ZooKeeper()
    try:
        yield servers
    finally:
        servers.close()


@pytest.fixture(scope="session")
def kafka(no_leaks: None) -> Iterator[Kafka]:
    """A broker. Each test creates topics with unique names; none stops the broker."""
    from tests.kafka.broker import Kafka

    with Kafka() as broker:
        yield broker


@pytest.fixture(scope="session")
def object_store(no_leaks: None) -> Iterator[ObjectStore]:
    """S3, whose credentials are in the environment."""
    from tests.object_store import ACCESS_KEY, SECRET_KEY, ObjectStore

    with pytest.MonkeyPatch.context() as patched, ObjectStore() as store:
        patched.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patched.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        yield store


def _processes(mark: str) -> list[psutil.Process]:
    """All living processes with our mark: also those whose parents are gone."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.pid != os.getpid() and process.environ().get(MARK) == mark
            if (
                ours
                and process.status() != psutil.STATUS_ZOMBIE
                and "resource_tracker" not in _command(process)
            ):
                found.append(process)
        except (psutil.Error, ProcessLookupError):  # it has ended, or is another user's
            continue
    return found


def _threads(before: set[threading.Thread]) -> list[threading.Thread]:
    return [
        thread for thread in threading.enumerate() if not thread.daemon and thread not in before
    ]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:300]
    except psutil.Error:
        return "(gone)"


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:
        pass
