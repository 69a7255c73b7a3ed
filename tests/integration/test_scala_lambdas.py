"""Classes in place of Scala's lambdas: see `FiresteelLambdas.java`."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from firesteel.common.process.class_archive import spark_home
from taskexecutor.executor.columnar.jvm.archive import archived_start
from taskexecutor.executor.columnar.jvm.engine import SparkEngine
from taskexecutor.executor.columnar.jvm.launch import OWN_JAR
from taskexecutor.executor.columnar.jvm.local_tasks import singleton

# None of them is replaced in slots. Their lambdas capture nothing, objects, and values of all sizes.
OWNERS = (
    "scala/Function1",
    "scala/Function2",
    "org/apache/spark/graphx/GraphOps",
    "org/apache/spark/graphx/lib/PageRank$",
    "org/apache/spark/graphx/lib/SVDPlusPlus$",
)


@pytest.fixture(scope="module")
def replaced(engine: SparkEngine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    jar = tmp_path_factory.mktemp("lambdas") / "replaced.jar"
    owners = " ".join((*OWNERS, "java/util/Comparator", "of/NoJar"))
    engine.code.type("FiresteelLambdas").write(owners, str(jar))
    return jar


def class_loader(engine: SparkEngine, first: Path) -> Any:
    """Loads classes from the jar `first`, else from Spark's jars."""
    jvm: Any = engine.session._jvm
    jars = [first, *sorted((spark_home() / "jars").glob("*.jar"))]
    urls = engine.session._sc._gateway.new_array(jvm.java.net.URL, len(jars))
    for place, jar in enumerate(jars):
        urls[place] = jvm.java.io.File(str(jar)).toURI().toURL()
    return jvm.java.net.URLClassLoader(urls, jvm.java.lang.ClassLoader.getPlatformClassLoader())


def test_the_jar_has_the_classes_and_their_lambdas(replaced: Path) -> None:
    names = [name.removesuffix(".class") for name in zipfile.ZipFile(replaced).namelist()]
    lambdas = [name for name in names if "$$Lambda$F" in name]
    assert {*names} - {*lambdas} == {*OWNERS}
    assert {name.partition("$$Lambda$F")[0] for name in lambdas} == {*OWNERS}


def test_the_jvm_verifies_every_class(engine: SparkEngine, replaced: Path) -> None:
    jvm: Any = engine.session._jvm
    loader = class_loader(engine, replaced)
    for name in zipfile.ZipFile(replaced).namelist():
        if "$$Lambda$F" in name:
            class_name = name.removesuffix(".class").replace("/", ".")
            loaded = jvm.java.lang.Class.forName(class_name, True, loader)
            assert loaded.isSynthetic()  # by which Spark's ClosureCleaner detects lambdas


def test_a_replaced_lambda_computes_and_has_a_serialized_form(
    engine: SparkEngine, replaced: Path
) -> None:
    jvm: Any = engine.session._jvm
    loader = class_loader(engine, replaced)
    function = jvm.java.lang.Class.forName("scala.Function1", True, loader)
    empty = (
        loader.loadClass("scala.collection.immutable.Set$EmptySet$").getField("MODULE$").get(None)
    )
    contains_false = invoked(engine, function, "andThen", empty, empty)
    assert "$$Lambda$F" in contains_false.getClass().getName()
    assert invoked(engine, function, "apply", contains_false, "x") is False
    form = contains_false.getClass().getDeclaredMethod("writeReplace", None)
    form.setAccessible(True)
    serialized = form.invoke(contains_false, None)
    assert serialized.getCapturedArgCount() == 2
    assert serialized.getImplMethodName().startswith("$anonfun$andThen$")
    resolve = serialized.getClass().getDeclaredMethod("readResolve", None)
    resolve.setAccessible(True)
    copy = resolve.invoke(serialized, None)
    assert invoked(engine, function, "apply", copy, "x") is False


def invoked(engine: SparkEngine, owner: Any, name: str, target: Any, argument: Any) -> Any:
    method = next(method for method in owner.getMethods() if method.getName() == name)
    arguments = engine.session._sc._gateway.new_array(engine.session._jvm.java.lang.Object, 1)
    arguments[0] = argument
    return method.invoke(target, arguments)


@pytest.mark.skipif(archived_start() is None, reason="`make setup` makes the jar")
def test_slots_take_replaced_classes_from_the_jar(engine: SparkEngine) -> None:
    conf = singleton(engine.session._jvm, "org.apache.spark.sql.internal.SQLConf")
    place = conf.getClass().getProtectionDomain().getCodeSource().getLocation()
    assert str(place).endswith(OWN_JAR)
