"""Firesteel's Java classes in the slot's JVM, for extensions that Spark's API does not cover.

Janino, the compiler of Spark's generated code, compiles the sources in `java/`. That happens once
per machine, into a jar on the class path (see `archive`); without that jar, in each JVM that needs
the classes, which are then defined by the class loader of Spark's own classes. In both cases
generated code finds them by name, and they must be in a package that Spark already has.
"""

from __future__ import annotations

import re
import threading
from importlib.resources import files
from typing import Any

PACKAGE = "org.apache.spark.unsafe"
# In `java/`, each after its dependencies, and with a class of its name.
SOURCES = (
    "FiresteelTask",
    "FiresteelSink",
    "FiresteelScan",
    "FiresteelPassing",
    "FiresteelFiles",
    "FiresteelBlocks",
    "FiresteelFileRDD",
    "FiresteelFooter",
    "FiresteelRowObserver",
    "FiresteelOnce",
    "FiresteelExpressions",
    "FiresteelSplit",
    "FiresteelSpill",
)
_NEIGHBOUR = f"{PACKAGE}.Platform"  # the classes share its package and class loader
_FOLDER = files("taskexecutor.executor.columnar.jvm") / "java"
_CLASS = re.compile(r"^(?:public )?(?:abstract |final )*class (\w+)", re.MULTILINE)

_DEFINER = f"""
public class Definer {{
    public static void define(byte[] code) throws Exception {{
        java.lang.invoke.MethodHandles.privateLookupIn(
            {_NEIGHBOUR}.class, java.lang.invoke.MethodHandles.lookup()).defineClass(code);
    }}
}}
"""


def source_text(source: str) -> str:
    return (_FOLDER / f"{source}.java").read_text()


class Code:
    """Firesteel's classes in one JVM, for the threads of all tasks. Classes are never unloaded, and
    none can be defined twice.
    """

    def __init__(self, gateway: Any) -> None:
        self._gateway = gateway
        self._jvm = gateway.jvm
        self._define: Any = None
        self._sources: set[str] = set()
        self._lock = threading.Lock()

    def load(self, source: str) -> None:
        """Makes the classes of `java/<source>.java` available: compiles and defines them unless
        they are on the class path. Later calls do nothing.
        """
        with self._lock:
            if source not in self._sources:
                if not self._exists(source):
                    self._defined(source)
                self._sources.add(source)

    def type(self, name: str) -> Any:
        """Returns the class `name`, for calls of its constructor and static methods."""
        return getattr(getattr(self._jvm, PACKAGE), name)

    def compiled(self) -> dict[str, bytes]:
        """Returns all classes as files of a jar. Call it only once in a JVM that has none of them
        on its class path.
        """
        folder = PACKAGE.replace(".", "/")
        return {
            f"{folder}/{name}.class": bytes(code)
            for source in SOURCES
            for name, code in self._defined(source).items()
        }

    def _exists(self, name: str) -> bool:
        from py4j.java_gateway import JavaClass

        return isinstance(self.type(name), JavaClass)

    def _defined(self, source: str) -> dict[str, Any]:
        """Compiles the source and defines its classes, in the order of the file."""
        text = source_text(source)
        codes = self._compiled(text)
        define = self._definer()
        names = _CLASS.findall(text)
        assert set(codes) == set(names), f"{source}.java has nested classes: {codes}"
        for name in names:
            arguments = self._gateway.new_array(self._jvm.java.lang.Object, 1)
            arguments[0] = codes[name]
            define.invoke(None, arguments)
        return codes

    def _compiled(self, text: str) -> dict[str, Any]:
        compiler = self._jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(text)
        return {
            str(name).rpartition(".")[2]: code for name, code in compiler.getBytecodes().items()
        }

    def _definer(self) -> Any:
        if self._define is None:
            compiler = self._jvm.org.codehaus.janino.SimpleCompiler()
            compiler.cook(_DEFINER)
            methods = compiler.getClassLoader().loadClass("Definer").getMethods()
            self._define = next(method for method in methods if method.getName() == "define")
        return self._define
