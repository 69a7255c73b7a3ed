"""Clusters on this machine: how far they grow, and ports that are taken."""

from __future__ import annotations

import socket

import psutil
import pytest

from firesteel.client.cli.cluster import _check_spark_connect_port
from firesteel.client.execution_context import EmbeddedCluster
from firesteel.common.config import Configuration, options
from firesteel.common.resources import slot_resources
from firesteel.errors import FiresteelError


def test_an_embedded_cluster_grows_while_the_machine_has_memory() -> None:
    conf = EmbeddedCluster(Configuration({}), slots=3).conf
    slots, most = conf.get(options.TASK_SLOTS), conf.get(options.MAX_SLOTS)
    assert slots == 3
    assert most % slots == 0
    each = slot_resources(conf).total.total_bytes
    assert most == 2 * slots or most // slots * each <= psutil.virtual_memory().total


def test_a_limit_and_a_number_of_task_executors_are_kept() -> None:
    limited = EmbeddedCluster(Configuration({options.MAX_SLOTS.key: "5"})).conf
    assert limited.get(options.MAX_SLOTS) == 5
    assert not EmbeddedCluster(Configuration({}), task_executors=1).conf.is_set(options.MAX_SLOTS)


def test_a_taken_port_of_spark_connect_is_an_error_that_names_its_key() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        conf = Configuration({options.SPARK_CONNECT_PORT.key: str(port)})
        with pytest.raises(FiresteelError, match=rf"spark-connect\.port={port}: cannot listen"):
            _check_spark_connect_port(conf)
    _check_spark_connect_port(conf)
