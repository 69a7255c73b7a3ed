"""Firesteel's Java classes in the slot's JVM, for extensions that Spark's API does not cover.

Janino, the compiler of Spark's generated code, compiles the sources in `java/`. That happens once
per machine, into a jar on the class path (see `archive`); without that jar, in each JVM that needs
the classes, which are then defined by the class loader of Spark's own classes. In both cases
generated code finds them by name, and they must be in a package that Spark already has.

`java/pom.xml` lets an IDE open them. Janino has no generics, lambdas or nested classes that would
be defined here: the sources use raw types, and have one class per file.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

PACKAGE = "org.apache.spark.unsafe"
_PATH = PACKAGE.replace(".", "/")
_NEIGHBOUR = f"{PACKAGE}.Platform"  # the classes share its package and class loader
_PARENT = re.compile(r"^[a-z ]*class \w+ extends (\w+)", re.MULTILINE)


def sources() -> dict[str, str]:
    """Returns the source of each class by its name."""
    folder = files("taskexecutor.executor.columnar.jvm") / "java" / _PATH
    found = sorted(folder.iterdir(), key=lambda file: file.name)
    return {file.name.removesuffix(".java"): file.read_text() for file in found}


class Code:
    """Firesteel's classes in one JVM, for the threads of all tasks. Classes are never unloaded, and
    none can be defined twice.
    """

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway
        self._jvm = gateway.jvm
        self._available = False
        self._lock = threading.Lock()

    def type(self, name: str) -> Any:
        """Returns the class `name`, for calls of its constructor and static methods. Compiles and
        defines all classes first, unless they are on the class path.
        """
        with self._lock:
            if not self._available:
                if not self._exists(name):
                    self._define(sources())
                self._available = True
        return self._java(name)

    def compiled(self) -> dict[str, bytes]:
        """Returns all classes as files of a jar."""
        codes = self._compiled(sources())
        return {f"{_PATH}/{name}.class": bytes(code) for name, code in codes.items()}

    def _java(self, name: str) -> Any:
        return getattr(getattr(self._jvm, PACKAGE), name)

    def _exists(self, name: str) -> bool:
        from py4j.java_gateway import JavaClass

        return isinstance(self._java(name), JavaClass)

    def _define(self, texts: Mapping[str, str]) -> None:
        jvm = self._jvm
        codes = self._compiled(texts)
        loader = jvm.java.lang.Class.forName(_NEIGHBOUR).getClassLoader()
        # Lookup.defineClass also links the class, so all classes that it refers to would have to be
        # defined before.
        methods = jvm.java.lang.Class.forName("java.lang.ClassLoader").getDeclaredMethods()
        define_class = next(
            method
            for method in methods
            if method.getName() == "defineClass" and method.getParameterCount() == 4
        )
        define_class.setAccessible(True)

        def define(name: str) -> None:
            if (code := codes.pop(name, None)) is None:
                return
            if (parent := _PARENT.search(texts[name])) is not None:
                define(parent[1])
            arguments = self._gateway.new_array(jvm.java.lang.Object, 4)
            for index, argument in enumerate((f"{PACKAGE}.{name}", code, 0, len(code))):
                arguments[index] = argument
            define_class.invoke(loader, arguments)

        for name in texts:
            define(name)

    def _compiled(self, texts: Mapping[str, str]) -> dict[str, Any]:
        """Compiles the sources together, since they refer to each other."""
        jvm = self._jvm
        resources = jvm.org.codehaus.commons.compiler.util.resource
        units = self._gateway.new_array(resources.Resource, len(texts))
        for index, (name, text) in enumerate(texts.items()):
            units[index] = resources.StringResource(f"{_PATH}/{name}.java", text)
        files_made = jvm.java.util.HashMap()
        compiler = jvm.org.codehaus.janino.Compiler()
        compiler.setClassFileCreator(resources.MapResourceCreator(files_made))
        compiler.setClassFileFinder(resources.MapResourceFinder(jvm.java.util.HashMap()))
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        compiler.setIClassLoader(jvm.org.codehaus.janino.ClassLoaderIClassLoader(loader))
        compiler.compile(units)
        codes = {
            str(path).rpartition("/")[2].removesuffix(".class"): code
            for path, code in files_made.items()
        }
        assert set(codes) == set(texts), f"there are nested classes: {set(codes) - set(texts)}"
        return codes
