"""Columns and user-defined functions of PySpark in a program, which has no JVM.

PySpark's functions build a Column by calling the JVM. The first `Environment` of a process, and
`firesteel run` before it runs a program, `install` a replacement in PySpark's modules. Importing
Firesteel does not. From then on, while no SparkContext is active, the functions call a `Deferred`
JVM instead, which records the calls: `F.col("x") > 1` is an ordinary PySpark Column,
which can be shipped to a slot and makes its calls when it is used there. Return types of
user-defined functions, written as DDL, are parsed without Spark.

With an active SparkContext (in a slot, or in a program that creates a SparkSession), PySpark's own
implementation is used.

The calls are made once per call of a function of the program (`made_anew`), not once in total:
`F.uuid()` draws a seed when it is called, and a Column that kept its seed would produce the same
values in every bundle.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import TYPE_CHECKING, Any

from firesteel.errors import InvalidProgram
from firesteel.plan.ddl import parse_type

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_log = logging.getLogger(__name__)
_originals: list[tuple[Any, str, Any]] = []  # replaced attributes: the owner, the name, the value
# The current call of a function of the program.
_call: ContextVar[object] = ContextVar("_call", default=None)


@contextmanager
def made_anew() -> Iterator[None]:
    """Makes each deferred object repeat its calls, once, inside the `with` block."""
    token = _call.set(object())
    try:
        yield
    finally:
        _call.reset(token)


class Deferred:
    """An object of the JVM that does not exist yet.

    Once a SparkContext is active, it behaves like the object: py4j passes it by the object's id,
    and its members are those of the object.
    """

    def __init__(self) -> None:
        # The SparkContext, the call, and the object in the JVM: py4j frees unreferenced objects.
        self._made: tuple[Any, object, Any] | None = None

    def __getattr__(self, name: str) -> Any:
        # py4j and pickle look for members that would change the behaviour of this object.
        if name.startswith("_") or name == "Java":
            raise AttributeError(name)
        if _active_context() is not None:
            return getattr(self.made(), name)
        if name == "toString":
            return self.__repr__
        return Member(self, name)

    def __call__(self, *arguments: Any) -> Any:
        if _active_context() is not None:
            return self.made()(*arguments)
        return Call(self, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._parts()

    def __repr__(self) -> str:
        return "jvm"

    def made(self) -> Any:
        """Returns the object in the JVM of the active SparkContext."""
        context, call = _active_context(), _call.get()
        if self._made is None or self._made[0] is not context or self._made[1] is not call:
            self._made = context, call, self._make(context)
        return self._made[2]

    def _get_object_id(self) -> str:  # called by py4j
        object_id: str = self.made()._get_object_id()
        return object_id

    def _parts(self) -> tuple[Any, ...]:
        return ()

    def _make(self, context: Any) -> Any:
        return context._jvm


class Member(Deferred):
    def __init__(self, of: Deferred, name: str) -> None:
        super().__init__()
        self.of = of
        self.member = name

    def __repr__(self) -> str:
        plain = isinstance(self.of, (Call, UdfCall))
        return f"{self.of!r}.{self.member}" if plain else self.member.rpartition(".")[2]

    def _parts(self) -> tuple[Any, ...]:
        return self.of, self.member

    def _make(self, context: Any) -> Any:
        return getattr(self.of.made(), self.member)


class Call(Deferred):
    """A call of a function; `arguments` may contain deferred objects, also in lists."""

    def __init__(self, function: Deferred, arguments: tuple[Any, ...]) -> None:
        super().__init__()
        self.function = function
        self.arguments = arguments

    def __repr__(self) -> str:
        return f"{self.function!r}({', '.join(map(repr, self.arguments))})"

    def _parts(self) -> tuple[Any, ...]:
        return self.function, self.arguments

    def _make(self, context: Any) -> Any:
        return self.function.made()(*self.arguments)


class UdfCall(Deferred):
    """A call of a user-defined function with columns."""

    def __init__(self, udf: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        super().__init__()
        self.udf = udf
        self.arguments = arguments
        self.named = named

    def __repr__(self) -> str:
        return f"{self.udf._name}({', '.join(map(str, self.arguments))})"

    def _parts(self) -> tuple[Any, ...]:
        return self.udf, self.arguments, self.named

    def _make(self, context: Any) -> Any:
        return self.udf(*self.arguments, **self.named)._jc


class _NoContext:
    """The members of a SparkContext that PySpark's functions need."""

    def __init__(self) -> None:
        self._jvm = Deferred()

    def _parse_ddl(self, text: str) -> DataType:
        parsed = parse_type(text)
        if parsed is None:
            raise InvalidProgram(
                f"{text!r} is not a type, or only Spark can parse it:"
                ' write a type as in "string" or "array<double>", or pass a type object,'
                " such as pyspark.sql.types.StringType()"
            )
        return parsed


def is_column(value: Any) -> bool:
    """Whether it is a Column of PySpark, deferred or not."""
    columns = sys.modules.get("pyspark.sql.column")
    return columns is not None and isinstance(value, columns.Column)


def deferred(where: str, column: Any) -> Deferred:
    """Returns the Column's recorded calls. Raises InvalidProgram if it belongs to a session."""
    calls = vars(column).get("_jc")
    if isinstance(calls, Deferred):
        return calls
    raise InvalidProgram(
        f"{where}() takes a Column that can be shipped to the slots, but this one belongs to a"
        " SparkSession of the program: create it with pyspark.sql.functions before the"
        " SparkSession and after the Environment, or write it as SQL text"
    )


def install() -> None:
    """Makes PySpark's functions work while no SparkContext is active, by replacing attributes of
    PySpark's modules and classes. Does nothing if they are replaced already.
    """
    if _originals:
        return
    from pyspark.sql import types, udf, utils
    from pyspark.sql.classic import column, table_arg, window
    from pyspark.sql.functions import builtin, partitioning

    no_context = _NoContext()
    get_active_spark_context = utils.get_active_spark_context

    def context() -> Any:
        return _active_context() or no_context

    modules: tuple[ModuleType, ...] = (
        *(types, udf, utils, column, table_arg, window),
        *(builtin, partitioning),
    )
    for module in modules:
        for name, value in list(vars(module).items()):
            if value is get_active_spark_context:
                _replace(module, name, context)

    def invoke_function(name: str, *arguments: Any) -> Any:
        return column.Column(builtin._get_jvm_function(name, context())(*arguments))

    _replace(builtin, "_invoke_function", invoke_function)

    call_udf = udf.UserDefinedFunction.__call__

    @functools.wraps(call_udf)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        if _active_context() is not None:
            return call_udf(self, *arguments, **named)
        return column.Column(UdfCall(self, arguments, named))  # type: ignore[arg-type]

    _replace(udf.UserDefinedFunction, "__call__", call)
    for name in ("cast", "try_cast", "astype"):
        _replace(column.Column, name, _cast_by_name(getattr(column.Column, name)))
    _log.debug("PySpark's functions work without a SparkContext from now on: %s", __name__)


def uninstall() -> None:
    """Restores PySpark. Columns that exist by then stay valid."""
    while _originals:
        owner, name, original = _originals.pop()
        setattr(owner, name, original)


@contextmanager
def installed() -> Iterator[None]:
    """Makes PySpark's functions work without a SparkContext inside the `with` block."""
    by_program = bool(_originals)
    install()
    try:
        yield
    finally:
        if not by_program:
            uninstall()


def _replace(owner: Any, name: str, value: Any) -> None:
    _originals.append((owner, name, getattr(owner, name)))
    setattr(owner, name, value)


def _cast_by_name(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Passes type objects by name: they reach the JVM through a session, which may not exist."""
    from pyspark.sql.types import DataType

    @functools.wraps(original)
    def cast(self: Any, dataType: Any) -> Any:
        if isinstance(dataType, DataType) and _active_context() is None:
            dataType = dataType.simpleString()
        return original(self, dataType)

    return cast


def _active_context() -> Any:
    """Returns the SparkContext with a JVM, if there is one."""
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    return context if context is not None and context._jvm is not None else None
