"""A slot's Spark for tests that run operators in their own process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.warm_up import start_warm

FOLDER = Path(__file__).parent
MIB = 2**20
# Modules that need an unusual slot run last and next to each other: each start of a slot
# takes as long as ten tests.
LAST = (
    "test_sequences",  # one core, and then two
    "test_collect",  # two
    "test_small_slot",
    "test_spark_master",
)


@contextmanager
def session_conf(engine: SparkEngine, values: Mapping[str, str]) -> Iterator[None]:
    """Changes settings of the session inside the `with`."""
    conf = engine.session.conf
    before = {key: conf.get(key, None) for key in values}
    for key, value in values.items():
        conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            conf.unset(key) if old is None else conf.set(key, old)


class Slot:
    """The Spark of the tests' process, of which there is one at a time: it stays for as many
    modules as ask for the same.
    """

    def __init__(self) -> None:
        self._engine: SparkEngine | None = None
        self._shape: object = None

    def spark(
        self,
        *,
        cores: int = 1,
        heap_bytes: int = 512 * MIB,
        conf: Mapping[str, str] | None = None,
    ) -> SparkEngine:
        """A warm engine."""
        shape = (cores, heap_bytes, dict(conf or {}))
        engine = self._engine
        if engine is None or shape != self._shape or not engine.is_alive():
            self.stop()
            engine = SparkEngine()
            start_warm(engine, conf or {}, cores=cores, heap_bytes=heap_bytes)
            self._engine, self._shape = engine, shape
        return engine

    def stop(self) -> None:
        if self._engine is not None:
            self._engine.stop()
            self._engine = None


SLOT = Slot()


@pytest.fixture(scope="session")
def slot(no_leaks: None) -> Iterator[Slot]:
    yield SLOT
    SLOT.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = [place for place, item in enumerate(items) if FOLDER in item.path.parents]
    ours = sorted((items[place] for place in places), key=_turn)
    for place, item in zip(places, ours, strict=True):
        items[place] = item


def _turn(item: pytest.Item) -> int:
    """Within a turn, they keep their order."""
    return 1 + LAST.index(item.path.stem) if item.path.stem in LAST else 0


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Other folders' tests find no session: with one, PySpark's functions make other columns."""
    if nextitem is not None and FOLDER not in nextitem.path.parents:
        SLOT.stop()


@pytest.fixture(scope="module")
def engine(slot: Slot) -> SparkEngine:
    return slot.spark()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every command that is sent to the JVM from here on, except releases of objects."""
    from py4j.clientserver import ClientServerConnection

    asked: list[str] = []
    send = ClientServerConnection.send_command

    def counting(self: Any, command: str) -> Any:
        asked.append(command)
        return send(self, command)

    monkeypatch.setattr(ClientServerConnection, "send_command", counting)
    return asked
