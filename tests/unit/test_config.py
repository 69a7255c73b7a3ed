from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel import Environment
from firesteel.client.execution_context import ExecutionContext
from firesteel.common.config import (
    Configuration,
    ConfigurationError,
    absolute_directories,
    check_combinations,
    options,
    parse_definitions,
)
from firesteel.common.job_graph import JobGraph
from firesteel.common.units import parse_duration_s, parse_size_bytes
from firesteel.connectors import DiscardSink
from firesteel.errors import InvalidProgram


def written(folder: Path, text: str) -> Path:
    path = folder / "config.yaml"
    path.write_text(text)
    return path


def test_what_is_not_set_has_its_default() -> None:
    conf = Configuration()
    assert [conf.get(option) for option in options.OPTIONS.values()] == [
        o.default for o in options.OPTIONS.values()
    ]
    assert conf.to_dict() == {}


def test_every_default_is_allowed() -> None:
    for option in options.OPTIONS.values():
        if option.kind == "enum":
            assert option.default in option.choices
        if option.minimum is not None:
            assert option.default >= option.minimum


def test_nested_and_flat_keys_mean_the_same(tmp_path: Path) -> None:
    nested = Configuration.load(
        written(tmp_path, "taskmanager:\n  numberOfTaskSlots: 4\n  memory.process.size: 2g\n")
    )
    flat = Configuration.load(
        written(tmp_path, "taskmanager.numberOfTaskSlots: 4\ntaskmanager.memory.process.size: 2g\n")
    )
    assert nested == flat
    assert nested.get(options.TASK_SLOTS) == 4
    assert nested.get(options.TM_PROCESS_SIZE) == 2 * 2**30


def test_overrides_win_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "parallelism.default: 4\nheartbeat.interval: 1 s\n")
    conf = Configuration.load(path, {"parallelism.default": "8"}).with_overrides(
        {"heartbeat.interval": "2 s"}
    )
    assert (conf.get(options.PARALLELISM), conf.get(options.HEARTBEAT_INTERVAL)) == (8, 2.0)


def test_the_file_of_the_configuration_folder_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "parallelism.default: 3\n")
    monkeypatch.setenv("FIRESTEEL_CONF_DIR", str(tmp_path))
    assert Configuration.load().get(options.PARALLELISM) == 3


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert Configuration.load(written(tmp_path, "# nothing\n")).to_dict() == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- a\n- b\n", "must be a mapping"),
        ("a: [1\n", "is not YAML"),
        ("parallelism:\n  default: 1\nparallelism.default: 2\n", "sets parallelism.default twice"),
        ("\x00\x01\x02", "is not YAML"),
    ],
)
def test_a_file_that_is_no_configuration(tmp_path: Path, text: str, complaint: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        Configuration.load(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        Configuration.load(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("taskmanager.numberOfTaskSlots", "many", "a whole number of at least 1"),
        ("taskmanager.numberOfTaskSlots", "0", "a whole number of at least 1"),
        ("client.payload.max-size", "100 mb", "of at most 48 mb"),
        ("taskmanager.cpu.cores", "nan", "a number"),
        ("heartbeat.interval", "-1 s", "a duration such as"),
        ("heartbeat.interval", "5 parsecs", "a duration such as"),
        ("taskmanager.memory.process.size", "1 qb", "a size such as"),
        ("pipeline.operator-chaining.enabled", "yes", "true or false"),
        ("jobmanager.execution.failover-strategy", "half", "one of region, full, individual"),
        ("python.files", "[a, {b: c}]", "a list"),
        ("spark.python.unix.domain.socket.enabled", "true", "Spark uses TCP"),
    ],
)
def test_a_bad_value_names_key_value_and_what_is_allowed(
    key: str, value: str, allowed: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Configuration({key: value})
    message = str(caught.value)
    assert key in message
    assert repr(value) in message
    assert allowed in message


def test_an_unknown_key_is_a_warning_that_names_the_nearest() -> None:
    conf = Configuration({"taskmanager.numberOfTaskSlot": "2", "zzz": "1"})
    assert conf.warnings == [
        "unknown configuration key taskmanager.numberOfTaskSlot, it has no effect;"
        " did you mean taskmanager.numberOfTaskSlots?",
        "unknown configuration key zzz, it has no effect",
    ]


def test_sparks_keys_are_passed_on_without_a_warning() -> None:
    conf = Configuration(
        {"spark.sql.shuffle.partitions": 4, "spark.ui.enabled": False, "parallelism.default": 2}
    )
    assert conf.spark() == {"spark.sql.shuffle.partitions": "4", "spark.ui.enabled": "false"}
    assert conf.warnings == []


def test_enums_are_read_in_any_case() -> None:
    assert (
        Configuration({"restart-strategy.type": "Fixed-Delay"}).get(options.RESTART_STRATEGY)
        == "fixed-delay"
    )


@pytest.mark.parametrize(
    "text", ["a.py;b.zip", "a.py, b.zip", "[a.py, b.zip]", '["a.py", "b.zip"]']
)
def test_lists(text: str) -> None:
    assert Configuration({"python.files": text}).get(options.PYTHON_FILES) == ["a.py", "b.zip"]


def test_a_list_that_was_given_out_is_not_the_configurations_own() -> None:
    conf = Configuration({"python.files": "a.py"})
    conf.get(options.PYTHON_FILES).append("b.py")
    Configuration().get(options.PYTHON_FILES).append("b.py")
    assert conf.get(options.PYTHON_FILES) == ["a.py"]
    assert options.PYTHON_FILES.default == []


@given(
    st.lists(
        st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1)
        .map(str.strip)
        .filter(bool)
    )
)
def test_any_list_survives_the_way_to_another_process(items: list[str]) -> None:
    conf = Configuration({"python.files": items})
    assert Configuration(conf.to_dict()).get(options.PYTHON_FILES) == items


def test_as_arguments_of_a_process() -> None:
    conf = Configuration({"parallelism.default": 2, "spark.driver.extraJavaOptions": "-Da=b -Dc=d"})
    arguments = conf.to_arguments()
    assert arguments[:2] == ["-D", "parallelism.default=2"]
    assert Configuration(parse_definitions(arguments[1::2])) == conf


def test_secrets_reach_processes_by_their_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = Configuration(
        {"s3.secret-key": "hush", "database.url": "db://u:hush@h/d", "parallelism.default": 2}
    )
    assert "hush" not in " ".join([*conf.to_arguments(), repr(conf), str(conf.for_jobs())])
    given = conf.to_environment()
    assert given["AWS_SECRET_ACCESS_KEY"] == "hush", "where pyarrow looks for it"
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "config.yaml"
    path.write_text("s3: {secret-key: another}")
    started = Configuration.load(path, parse_definitions(conf.to_arguments()[1::2]))
    assert started == conf, "the process that started it has decided"
    assert Configuration({"parallelism.default": 2}).to_environment() == {}


def test_a_job_has_no_secrets_of_the_cluster() -> None:
    env = Environment(configuration={"s3.secret-key": "hush"})
    env.from_sequence(0, 10).print()
    with pytest.raises(
        InvalidProgram, match="s3.secret-key belongs to the cluster's conf"
    ) as raised:
        env.job_graph()
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("definition", ["parallelism.default", "=2", ""])
def test_a_definition_needs_key_and_value(definition: str) -> None:
    with pytest.raises(ConfigurationError, match="expected key=value"):
        parse_definitions([definition])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3 min", 180),
        ("500 ms", 0.5),
        ("1.5 s", 1.5),
        ("250", 0.25),
        ("0", 0),
        ("1d", 86400),
        ("2H", 7200),
        ("10 µs", 1e-5),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024m", 2**30), ("64 kb", 65536), ("17", 17), ("1.5 GiB", 3 * 2**29), ("2T", 2**41)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"heartbeat.timeout": "2 s", "heartbeat.interval": "2 s"},
            "heartbeat.timeout is 2 s, not longer than heartbeat.interval, which is 2 s",
        ),
        (
            {"execution.checkpointing.interval": "1 s"},
            "execution.checkpointing.dir is not: set the directory",
        ),
        (
            {
                "restart-strategy.type": "exponential-delay",
                "restart-strategy.exponential-delay.initial-backoff": "2 h",
            },
            "initial-backoff is 7200 s, longer than",
        ),
    ],
)
def test_options_that_contradict_each_other(values: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        check_combinations(Configuration(values))


def test_directories_are_relative_to_the_current_one(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    values = {
        "execution.checkpointing.dir": "some/place",
        "execution.checkpointing.savepoint-dir": "s3://bucket/place",
        "parallelism.default": "2",
    }
    found = absolute_directories(values)
    assert found == values | {"execution.checkpointing.dir": f"{tmp_path}/some/place"}


def test_a_max_parallelism_below_the_parallelism_is_refused() -> None:
    env = Environment(parallelism=3, configuration={"pipeline.max-parallelism": "2"})
    env.from_sequence(1, 3).sink_to(DiscardSink())
    with pytest.raises(InvalidProgram, match="has parallelism 3, over its max parallelism 2"):
        env._program.job_graph("job")


@pytest.mark.parametrize("on_cluster", [False, True])
def test_programs_on_the_cluster_have_no_directory_of_their_own(
    monkeypatch, tmp_path: Path, *, on_cluster: bool
) -> None:
    submitted: list[JobGraph] = []

    class Submits:
        def submit(self, job_graph: JobGraph, files: object) -> str:
            submitted.append(job_graph)
            return "id"

    monkeypatch.chdir(tmp_path)
    env = Environment(configuration={"execution.checkpointing.dir": "place"})
    env.from_sequence(1, 3).sink_to(DiscardSink())
    context = ExecutionContext(mode="remote", conf=Configuration(), on_cluster=on_cluster)
    context.submit(Submits(), env._program.job_graph("job"))
    expected = "place" if on_cluster else f"{tmp_path}/place"
    assert submitted[0].config["execution.checkpointing.dir"] == expected
