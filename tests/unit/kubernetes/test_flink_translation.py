"""Flink's configuration becomes Firesteel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from firesteel.common.config import Configuration, ConfigurationError, read_values
from firesteel.kubernetes.flink.translation import (
    APPLICATION,
    SESSION,
    Program,
    flink_list,
    template_of,
    translate,
)

# As Flink 2.3's client writes it, with fewer options of Java.
DEPLOYED = """\
blob:
  server:
    port: '6124'
jobmanager:
  execution:
    failover-strategy: region
  rpc:
    address: orders.default
    port: 6123
  memory:
    process:
      size: 1600m
kubernetes:
  cluster-id: orders
  container:
    image:
      ref: firesteel:1
  internal:
    jobmanager:
      entrypoint:
        class: org.apache.flink.kubernetes.entrypoint.KubernetesApplicationClusterEntrypoint
  taskmanager:
    labels: a:b,c:d
$internal:
  application:
    program-args:
    - --a
    - x;y
    - b c
parallelism:
  default: 1
taskmanager:
  numberOfTaskSlots: 1
  memory:
    process:
      size: 1728m
  rpc:
    port: '6122'
env:
  java:
    opts:
      all: --add-exports=java.rmi/sun.rmi.registry=ALL-UNNAMED
security:
  enabled: 'false'
execution:
  checkpointing:
    mode: EXACTLY_ONCE
    interval: 10 s
  target: kubernetes-application
  state-recovery:
    claim-mode: NO_CLAIM
    ignore-unclaimed-state: false
  attached: true
  shutdown-on-attached-exit: false
internal:
  cluster:
    execution-mode: NORMAL
pipeline:
  jars:
  - local:///opt/job.py
rest:
  address: localhost
"""
JOB = {"pipeline.jars": "local:///opt/job.py"}


def values(**given: str) -> dict[str, str]:
    """Translates keys whose dots are written as `__` and whose dashes as `_`."""
    keys = {key.replace("__", ".").replace("_", "-"): text for key, text in given.items()}
    found = dict(translate(keys, SESSION).values)
    assert found.pop("high-availability.type") == "kubernetes"
    assert found.pop("slotmanager.number-of-slots.max") == "2147483647"
    return found


def test_keys_of_both_are_kept_and_others_are_ignored() -> None:
    translation = translate(
        {
            "parallelism.default": "4",
            "taskmanager.numberOfTaskSlots": "2",
            "execution.checkpointing.interval": "10 s",
            "kubernetes.cluster-id": "orders",
            "kubernetes.taskmanager.labels": "team:orders,tier:batch",
            "spark.sql.session.timeZone": "UTC",
            "env.java.opts.all": "-Dx=y",
            "jobmanager.memory.heap.size": "1600m",
        },
        SESSION,
    )
    conf = Configuration(translation.values)
    assert not conf.warnings
    assert conf.to_dict() == {
        "parallelism.default": "4",
        "taskmanager.numberOfTaskSlots": "2",
        "execution.checkpointing.interval": "10 s",
        "kubernetes.cluster-id": "orders",
        "kubernetes.taskmanager.labels": "team:orders,tier:batch",
        "spark.sql.session.timeZone": "UTC",
        "high-availability.type": "kubernetes",
        "kubernetes.resourcemanager.address": "orders:6124",
        "resourcemanager.rpc.port": "6124",
        "slotmanager.number-of-slots.max": "2147483647",
    }
    assert translation.ignored == ("env.java.opts.all", "jobmanager.memory.heap.size")
    assert translation.program is None


def test_a_configuration_of_flinks_client_is_translated(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(DEPLOYED)
    translation = translate(read_values(path), APPLICATION)
    assert translation.program == Program(path="/opt/job.py", arguments=("--a", "x;y", "b c"))
    conf = Configuration(translation.values)
    assert not conf.warnings
    assert conf.to_dict() == {
        "execution.checkpointing.interval": "10 s",
        "execution.checkpointing.mode": "exactly-once",
        "execution.state-recovery.claim-mode": "NO_CLAIM",
        "execution.state-recovery.ignore-unclaimed-state": "false",
        "high-availability.type": "kubernetes",
        "jobmanager.execution.failover-strategy": "region",
        "jobmanager.memory.process.size": "1600m",
        "jobmanager.rpc.port": "6123",
        "kubernetes.cluster-id": "orders",
        "kubernetes.container.image.ref": "firesteel:1",
        "kubernetes.resourcemanager.address": "orders:6124",
        "kubernetes.taskmanager.labels": "a:b,c:d",
        "parallelism.default": "1",
        "resourcemanager.rpc.port": "6124",
        "slotmanager.number-of-slots.max": "2147483647",
        "security.enabled": "false",
        "taskmanager.memory.process.size": "1728m",
        "taskmanager.numberOfTaskSlots": "1",
    }
    assert translation.ignored == (
        "env.java.opts.all",
        "execution.attached",
        "execution.shutdown-on-attached-exit",
        "execution.target",
        "internal.cluster.execution-mode",
        "jobmanager.rpc.address",
        "kubernetes.internal.jobmanager.entrypoint.class",
        "rest.address",
        "taskmanager.rpc.port",
    )


def test_addresses_are_not_taken_over() -> None:
    assert values(jobmanager__rpc__address="orders.default", rest__port="8081") == {
        "rest.port": "8081"
    }


def test_other_names_and_spellings_are_understood() -> None:
    assert values(
        kubernetes__container__image="firesteel:1",
        state__checkpoints__dir="s3://orders/checkpoints",
        execution__checkpointing__mode="EXACTLY_ONCE",
        restart_strategy="fixeddelay",
        high_availability="org.apache.flink.kubernetes.highavailability.KubernetesHaServicesFactory",
        execution__state_recovery__claim_mode="no_claim",
    ) == {
        "kubernetes.container.image.ref": "firesteel:1",
        "execution.checkpointing.dir": "s3://orders/checkpoints",
        "execution.checkpointing.mode": "exactly-once",
        "restart-strategy.type": "fixed-delay",
        "execution.state-recovery.claim-mode": "NO_CLAIM",
    }


def test_the_name_of_firesteel_counts_before_another_one() -> None:
    names = {
        "state.checkpoints.dir": "s3://old",
        "execution.checkpointing.dir": "s3://new",
    }
    assert translate(names, SESSION).values["execution.checkpointing.dir"] == "s3://new"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("table.local-time-zone", "Europe/Berlin"),
        ("pipeline.classpaths", "file:///opt/a.jar"),
        ("user.artifacts.artifact-list", "s3://a/b.zip"),
        ("pipeline.time-characteristic", "ProcessingTime"),
        ("security.ssl.rest.enabled", "true"),
    ],
)
def test_a_key_that_cannot_be_obeyed_is_refused(key: str, value: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{key}: '{value}' is not allowed"):
        translate(JOB | {key: value}, APPLICATION)


def test_a_key_without_effect_is_not_refused() -> None:
    assert translate({"security.ssl.enabled": "false", "pipeline.classpaths": "[]"}, SESSION)


def test_a_program_has_its_arguments() -> None:
    given = JOB | {"$internal.application.program-args": "--shop;north;'a;b'"}
    assert translate(given, APPLICATION).program == Program(
        path="/opt/job.py", arguments=("--shop", "north", "a;b")
    )
    driver = {
        "$internal.application.main": "org.apache.flink.client.python.PythonDriver",
        "$internal.application.program-args": '["-pym", "shop.job", "--shop", "north"]',
    }
    assert translate(driver, APPLICATION).program == Program(
        module="shop.job", arguments=("--shop", "north")
    )
    driver["$internal.application.program-args"] = "-py;/opt/job.py"
    assert translate(driver, APPLICATION).program == Program(path="/opt/job.py")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "0 programs are not allowed"),
        ({"pipeline.jars": "local:///a.py;local:///b.py"}, "2 programs are not allowed"),
        ({"pipeline.jars": "local:///opt/job.jar"}, "expected a Python program of the image"),
        ({"pipeline.jars": "s3://jobs/job.py"}, "expected a Python program of the image"),
        (JOB | {"$internal.application.main": "com.shop.Job"}, "without a main class"),
        (
            {
                "$internal.application.main": "org.apache.flink.client.python.PythonDriver",
                "$internal.application.program-args": "--help",
            },
            "expected -py FILE or -pym MODULE",
        ),
    ],
)
def test_a_program_that_cannot_run_is_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        translate(given, APPLICATION)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'yarn' is not allowed"):
        translate({}, "yarn")


def test_lists_are_parsed_as_flink_writes_them() -> None:
    assert flink_list("") == ()
    assert flink_list("a; b ;c") == ("a", "b", "c")
    assert flink_list("'it''s; one';\"two\"") == ("it's; one", "two")
    assert flink_list('["a;b", "c"]') == ("a;b", "c")


def test_the_main_container_of_a_template_is_renamed() -> None:
    template = {
        "spec": {"containers": [{"name": "flink-main-container", "env": []}, {"name": "logs"}]}
    }
    assert template_of(template)["spec"]["containers"] == [
        {"name": "firesteel-main-container", "env": []},
        {"name": "logs"},
    ]
    assert template["spec"]["containers"][0]["name"] == "flink-main-container"
