"""Java of our own in the slot's JVM, where Spark's API ends at its generated code.

The sources in `java/` are compiled by Janino, which Spark compiles its generated code with, and
defined by the class loader of Spark's own classes: so generated code finds them by name. That needs
no build step and no jar, but they must be in a package that Spark already has.
"""

from __future__ import annotations

import re
import threading
from importlib.resources import files
from typing import Any

PACKAGE = "org.apache.spark.unsafe"
_NEIGHBOUR = f"{PACKAGE}.Platform"  # its package and class loader are theirs
_FOLDER = files("taskexecutor.executor.spark.jvm") / "java"
_CLASS = re.compile(r"^(?:public )?(?:abstract |final )*class (\w+)", re.MULTILINE)

_DEFINER = f"""
public class Definer {{
    public static void define(byte[] code) throws Exception {{
        java.lang.invoke.MethodHandles.privateLookupIn(
            {_NEIGHBOUR}.class, java.lang.invoke.MethodHandles.lookup()).defineClass(code);
    }}
}}
"""


class Code:
    """The classes that were defined in one JVM, for the threads of all tasks. They are never
    unloaded, and none can be defined twice.
    """

    def __init__(self, session: Any) -> None:
        self._jvm = session._jvm
        self._gateway = session._sc._gateway
        self._define: Any = None
        self._sources: set[str] = set()
        self._lock = threading.Lock()

    def load(self, source: str) -> None:
        """Compiles `java/<source>.java` and defines its classes, in their order in the file.
        Once: later calls do nothing.
        """
        with self._lock:
            if source not in self._sources:
                self._load(source)
                self._sources.add(source)

    def _load(self, source: str) -> None:
        text = (_FOLDER / f"{source}.java").read_text()
        codes = {name.rpartition(".")[2]: code for name, code in self._compiled(text).items()}
        define = self._definer()
        for name in _CLASS.findall(text):
            arguments = self._gateway.new_array(self._jvm.java.lang.Object, 1)
            arguments[0] = codes.pop(name)
            define.invoke(None, arguments)
        assert not codes, f"{source}.java has classes inside classes: {sorted(codes)}"

    def type(self, name: str) -> Any:
        """The class `name`, to call its constructor and its static methods."""
        return getattr(getattr(self._jvm, PACKAGE), name)

    def _compiled(self, text: str) -> dict[str, Any]:
        compiler = self._jvm.org.codehaus.janino.SimpleCompiler()
        compiler.cook(text)
        return {str(name): code for name, code in compiler.getBytecodes().items()}

    def _definer(self) -> Any:
        if self._define is None:
            compiler = self._jvm.org.codehaus.janino.SimpleCompiler()
            compiler.cook(_DEFINER)
            methods = compiler.getClassLoader().loadClass("Definer").getMethods()
            self._define = next(method for method in methods if method.getName() == "define")
        return self._define
