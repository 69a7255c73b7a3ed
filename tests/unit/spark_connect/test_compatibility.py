"""The sessions of a PySpark program. No server is needed: sessions connect when they are first used."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, LongType

from firesteel.client.spark_programs.compatibility import NotAvailable, connect_sessions
from firesteel.client.spark_programs.detection import is_pyspark_program, mentions_streams
from firesteel.errors import FiresteelError


class Front:
    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.started = False

    def url(self, settings: Mapping[str, str]) -> str:
        if not self.started:
            self.started, self.settings = True, dict(settings)
        return "sc://127.0.0.1:1"


@pytest.fixture
def front() -> Iterator[Front]:
    front = Front()
    with connect_sessions(front):
        yield front


def test_the_builder_starts_the_front_and_gives_one_session(front: Front) -> None:
    assert not front.started
    session = SparkSession.builder.getOrCreate()
    assert type(session).__module__ == "pyspark.sql.connect.session"
    assert front.started
    assert SparkSession.builder.getOrCreate() is session


@pytest.mark.parametrize("create", ["getOrCreate", "create"])
def test_a_master_has_no_effect_and_is_no_setting(
    front: Front, create: str, capsys: pytest.CaptureFixture[str]
) -> None:
    getattr(SparkSession.builder.master("local[7]"), create)()
    assert front.settings == {}
    assert "Warning: .master('local[7]') has no effect" in capsys.readouterr().err


def test_a_program_that_names_a_server_gets_it(front: Front) -> None:
    session = SparkSession.builder.remote("sc://127.0.0.1:2").getOrCreate()
    assert session.client._builder.endpoint == "127.0.0.1:2"
    assert not front.started


def test_functions_can_be_defined_before_the_session(front: Front) -> None:
    lengths = F.udf(len, "array<bigint>")
    assert lengths.returnType == ArrayType(LongType())
    assert F.pandas_udf(lambda values: values, "long").returnType == LongType()
    assert "plus" in str(lengths(F.col("a")).alias("plus"))


def test_members_of_the_context(front: Front) -> None:
    context = SparkSession.builder.getOrCreate().sparkContext
    context.setLogLevel("warn")
    context.setJobDescription("none")
    context.setLocalProperty("spark.scheduler.pool", "a")
    assert context.uiWebUrl is None
    with pytest.raises(FiresteelError, match="'LOUD'.*'WARN'"):
        context.setLogLevel("LOUD")


@pytest.mark.parametrize(
    ("use", "instead"),
    [
        (lambda spark: spark.range(3).rdd, "mapInPandas"),
        (lambda spark: spark.range(3)._jdf, "DataFrame API"),
        (lambda spark: spark._jvm, "DataFrame API"),
        (lambda spark: spark.sparkContext._jsc, "DataFrame API"),
        (lambda spark: spark.sparkContext.parallelize([1]), r"spark\.createDataFrame"),
        (lambda spark: spark.sparkContext.broadcast(1), "refer to the variable"),
        (lambda spark: spark.sparkContext.statusTracker(), "Spark Connect"),
        (lambda spark: SparkContext("local", "name"), r"SparkSession\.builder"),
        (lambda spark: SparkContext(conf=SparkConf()), r"SparkSession\.builder"),
    ],
)
def test_what_needs_a_jvm_says_what_to_use(front: Front, use, instead: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    with pytest.raises(NotAvailable, match=instead):
        use(spark)


def test_a_context_is_that_of_the_session(front: Front) -> None:
    context = SparkContext.getOrCreate()
    assert front.started
    context.setLogLevel("ERROR")


def test_everything_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER", "local[3]")
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    before = dict(vars(SparkSession.Builder)), dict(vars(SparkContext)), dict(os.environ)
    with connect_sessions(Front()):
        session = SparkSession.builder.getOrCreate()
        assert "MASTER" not in os.environ
        assert os.environ["SPARK_REMOTE"] == "sc://127.0.0.1:1"
    after = dict(vars(SparkSession.Builder)), dict(vars(SparkContext)), dict(os.environ)
    assert after == before
    assert session.is_stopped
    with pytest.raises(Exception, match="JVM_ATTRIBUTE_NOT_SUPPORTED"):
        session._jvm  # noqa: B018


@pytest.mark.parametrize(
    ("main", "helper", "pyspark", "streams"),
    [
        ("import pyspark", "", True, False),
        ("import helper", "from pyspark.sql import SparkSession\nspark.readStream", True, True),
        ("import helper", "def f():\n    from firesteel import Environment", False, False),
        ("from firesteel.windows import Tumbling", "", False, False),
        ("print('from firesteel import x')", "", True, False),
        ("spark.readStream", "", True, True),
    ],
)
def test_the_imports_decide_which_program_it_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    main: str,
    helper: str,
    pyspark: bool,
    streams: bool,
) -> None:
    (tmp_path / "main.py").write_text(main)
    (tmp_path / "helper.py").write_text(helper)
    monkeypatch.syspath_prepend(tmp_path)
    assert is_pyspark_program(tmp_path / "main.py") is pyspark
    assert mentions_streams(tmp_path / "main.py") is streams
