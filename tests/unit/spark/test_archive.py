"""Preparation once per machine: copies of jars, and MLlib's functions, which one copy omits."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from xml.etree import ElementTree

from firesteel.common.process.class_archive import spark_home
from taskexecutor.executor.columnar.jvm import archive
from taskexecutor.executor.columnar.jvm.launch import OWN_JAR, class_path
from taskexecutor.executor.columnar.jvm.mllib import _OnImport, forget


def test_copies_of_jars_go_without_signatures_and_the_costly_extension(tmp_path: Path) -> None:
    archive.copy_jars(spark_home() / "jars", tmp_path / "jars")
    copies = {
        copy.name.split("-")[0]: zipfile.ZipFile(copy).namelist()
        for copy in (tmp_path / "jars").iterdir()
    }
    assert set(copies) == {"janino", "commons", "spark"}
    names = [name for members in copies.values() for name in members]
    assert not [name for name in names if name.endswith((".SF", ".DSA", ".RSA"))]
    assert "META-INF/services/org.apache.spark.sql.SparkSessionExtensionsProvider" not in names
    assert "org/codehaus/janino/Parser.class" in names
    assert "META-INF/services/org.apache.spark.sql.sources.DataSourceRegister" in names


def test_copies_take_the_places_of_the_jars_they_copy(tmp_path: Path) -> None:
    jar = next((spark_home() / "jars").glob("janino-*.jar"))
    (tmp_path / jar.name).touch()
    (tmp_path / "another.jar").touch()
    before, after = class_path().split(":"), class_path("mine.jar", tmp_path).split(":")
    assert after == [
        *(str(tmp_path / jar.name) if path == str(jar) else path for path in before),
        "mine.jar",
    ]


def test_only_clusters_add_their_jars_after_those_of_the_archive() -> None:
    local, cluster = class_path().split(":"), class_path("mine.jar", local=False).split(":")
    assert cluster[: len(local)] == local, "the archive is valid for both"
    *more, extra = cluster[len(local) :]
    assert extra == "mine.jar"
    assert sorted([*local, *more]) == sorted(map(str, (spark_home() / "jars").glob("*.jar")))
    assert any("spark-kubernetes_" in jar for jar in more)
    assert not any("hadoop" in jar or "parquet" in jar or "hive-exec" in jar for jar in more)


def test_our_own_jar_comes_first(tmp_path: Path) -> None:
    (tmp_path / OWN_JAR).touch()
    assert class_path("mine.jar", tmp_path).split(":") == [
        str(tmp_path / OWN_JAR),
        *class_path().split(":"),
        "mine.jar",
    ]


def test_our_own_jar_has_hadoops_defaults_without_descriptions(tmp_path: Path) -> None:
    archive.write_own_jar({"A.class": b"code"}, tmp_path / OWN_JAR)
    (hadoop,) = (spark_home() / "jars").glob("hadoop-client-api-*.jar")
    with zipfile.ZipFile(hadoop) as original, zipfile.ZipFile(tmp_path / OWN_JAR) as ours:
        assert ours.read("A.class") == b"code"
        names = {name for name in original.namelist() if name.endswith("-default.xml")}
        assert "core-default.xml" in names
        assert {*names, "A.class"} == set(ours.namelist())
        for name in names:
            assert settings(ours.read(name)) == settings(original.read(name))
            assert len(ours.read(name)) < len(original.read(name)) / 2


def settings(content: bytes) -> list[dict[str, str | None]]:
    return [
        {part.tag: part.text for part in setting if not part.tag.startswith("de")}
        for setting in ElementTree.fromstring(content)
    ]


def test_an_archive_is_for_one_version_of_our_java(tmp_path: Path, monkeypatch) -> None:
    before = archive.class_archive().folder
    assert archive.class_archive().folder == before
    monkeypatch.setattr(archive, "sources", lambda: {"A": "class A {}"})
    assert archive.class_archive().folder != before


def test_without_an_archive_there_is_nothing_to_use(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert archive.archived_start() is None
    archive.class_archive().folder.mkdir(parents=True)
    assert archive.archived_start() is None
    (archive.class_archive().folder / "classes.jsa").touch()
    found = archive.archived_start()
    assert found is not None and found.jars == archive.class_archive().folder / "jars"


def test_an_import_is_noticed_once(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "noticed_module.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    calls: list[int] = []
    finder = _OnImport("noticed_module", lambda: calls.append(1))
    sys.meta_path.insert(0, finder)
    try:
        for _ in range(2):
            __import__("noticed_module")
            del sys.modules["noticed_module"]
    finally:
        forget(finder)
    assert calls == [1]
    assert finder not in sys.meta_path
