"""Tracebacks of shipped functions show their source lines where the program's file is not."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, Producer

from firesteel.plan.source_lines import dumps_with_lines

PROGRAM = """
from firesteel import Environment

def shared(value):
    return (
        1 / value
    )

class Adds:
    def __call__(self, batches):
        for batch in batches:
            yield shared(0)

env = Environment()
numbers = env.from_sequence(0, 10)
numbers.filter(lambda batch: shared(0)).print()
numbers.map_in_arrow(Adds()).print()
numbers.filter("value > 1").print()
import sys
for vertex in env.job_graph("job").vertices:
    for operator in vertex.operators:
        print(operator.spec.hex())
"""
RECEIVER = """
import pickle, sys
from firesteel.common.error_report import error_info
for line in sys.stdin:
    spec = pickle.loads(bytes.fromhex(line.split()[-1]))
    try:
        if type(spec).__name__ == "MapInArrowSpec":
            list(spec.function([1]))
        elif type(spec).__name__ == "FilterSpec":
            spec.function(None)
    except ZeroDivisionError as error:
        print(error_info(error).user_traceback)
"""

# Removes the file name of the code, as cloudpickle 3.1.3 does and 3.1.2 does not.
WITHOUT_FILE_NAMES = """
import cloudpickle
from types import CodeType
table = cloudpickle.CloudPickler.dispatch_table
reduce = table[CodeType]
table[CodeType] = lambda code: reduce(code.replace(co_filename="<dynamic-code>"))
"""


@pytest.mark.parametrize("cloudpickle", ["", WITHOUT_FILE_NAMES], ids=["installed", "3.1.3"])
def test_their_lines_are_shipped(tmp_path: Path, cloudpickle: str) -> None:
    (tmp_path / "cloudpickle_of_test.py").write_text(cloudpickle)
    (tmp_path / "job.py").write_text("import cloudpickle_of_test\n" + PROGRAM)
    (tmp_path / "elsewhere").mkdir()
    sent = subprocess.run(
        [sys.executable, "job.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    (tmp_path / "job.py").unlink()
    received = subprocess.run(
        [sys.executable, "-c", RECEIVER],
        cwd=tmp_path / "elsewhere",
        input=sent.stdout,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "    numbers.filter(lambda batch: shared(0)).print()\n" in received.stdout
    assert "    yield shared(0)\n" in received.stdout
    assert received.stdout.count("    1 / value\n") == 2


def test_classes_that_name_a_missing_module_are_pickled_by_name() -> None:
    """The classes of confluent_kafka are in `confluent_kafka.cimpl`, and name `cimpl`."""
    assert confluent_kafka.Producer.__module__ not in sys.modules

    def used() -> list[type]:
        return [Producer, KafkaException]

    found = dumps_with_lines(used)
    assert "confluent_kafka" in found.modules
    assert pickle.loads(found.data)() == [Producer, KafkaException]
