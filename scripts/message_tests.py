"""Finds decisions that depend on the words of an error message. `make lint` runs it.

    python scripts/message_tests.py PATH...

A message is for people: its wording changes with the version of a library and with the language of
a database. Programs decide by the class of an error, or by its code, reason, errno or SQLSTATE.

Reported are tests of the text of an exception: `"..." in str(error)`, `error.details() == "..."`,
`str(error).startswith("...")`, `re.search("...", str(error))`, a `match` on it, and the same for a
variable or a parameter of a function of the module that has such a text. Reported as well are calls
of `context.abort` outside of the modules in ABORTS, which have no reason.

Where a library has nothing but a text, a comment in the line of the test, or before it, says so:

    if "does not exist" in str(error):  # text only: the library raises OSError without errno
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

MARK = re.compile(r"#.*\btext only: \S")
# Calls end here with a reason of Firesteel's, or as Spark Connect's protocol says.
ABORTS = ("firesteel/common/rpc/status.py", "firesteel/spark_connect/front.py")

_ERROR_NAMES = re.compile(r"(?:.*_)?(?:error|exc|exception|err)", re.IGNORECASE)
_ERROR_TYPES = re.compile(r"\b\w*(?:Error|Exception)\b")
_TO_TEXT = frozenset({"str", "repr", "ascii", "format", "text_of", "summary_of"})
# Attributes and methods of errors, of Python's and of Java's, that return a text.
_TEXT_METHODS = frozenset(
    {"details", "getMessage", "getLocalizedMessage", "toString", "debug_error_string"}
)
_TEXT_ATTRIBUTES = frozenset(
    {"args", "desc", "_desc", "message", "_message", "msg", "strerror", "message_primary"}
)
_CHANGES = frozenset(  # of a text, which is a message afterwards as it was before
    {"strip", "lstrip", "rstrip", "lower", "upper", "casefold", "replace", "removeprefix"}
    | {"removesuffix", "splitlines", "split", "rsplit", "partition", "rpartition", "join", "encode"}
)
_TESTS = frozenset({"startswith", "endswith", "find", "rfind", "index", "rindex", "count"})
_SEARCHES = frozenset({"search", "match", "fullmatch", "findall", "finditer"})


class Finding(NamedTuple):
    path: str
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}"


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class _Scope:
    """The names of a function that are errors, and those that are messages."""

    def __init__(self, parent: _Scope | None = None) -> None:
        self._parent = parent
        self.errors: set[str] = set()
        self.messages: set[str] = set()
        self.others: set[str] = set()  # hide what has the name outside

    def is_error(self, name: str) -> bool:
        if name in self.errors:
            return True
        if name in self.others or name in self.messages:
            return False
        if self._parent is not None and self._parent.knows(name):
            return self._parent.is_error(name)
        return _ERROR_NAMES.fullmatch(name) is not None

    def is_message(self, name: str) -> bool:
        if name in self.messages:
            return True
        if name in self.errors or name in self.others:
            return False
        return self._parent is not None and self._parent.is_message(name)

    def knows(self, name: str) -> bool:
        known = name in self.errors | self.messages | self.others
        return known or (self._parent is not None and self._parent.knows(name))


class _Module:
    """Finds the tests of one module. Parameters that are passed a message are messages: the module
    is read until no more of them are found.
    """

    def __init__(self, tree: ast.Module, *, aborts: bool) -> None:
        self._tree = tree
        self._aborts = aborts
        self._functions: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = {
            node.name: node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)
        }
        self._passed: set[tuple[str, str]] = set()  # function, parameter
        self._returning: set[str] = set()  # functions that return a message
        self.found: dict[tuple[int, int], str] = {}  # by the first and the last line

    def run(self) -> dict[tuple[int, int], str]:
        while True:
            before = len(self._passed), len(self._returning)
            self.found = {}
            self._block(self._tree.body, _Scope(), None)
            if (len(self._passed), len(self._returning)) == before:
                return self.found

    # ---- statements

    def _block(self, body: Sequence[ast.stmt], scope: _Scope, function: str | None) -> None:
        for statement in body:
            self._statement(statement, scope, function)

    def _statement(self, node: ast.stmt, scope: _Scope, function: str | None) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, scope)
                return
            case ast.ClassDef():
                self._block(node.body, _Scope(scope), None)
                return
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value, scope)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value, scope)
            case ast.For(target=target, iter=iterated):
                if self._is_message(iterated, scope):
                    self._assign(target, iterated, scope)
            case ast.Return(value=ast.expr() as value) if function is not None:
                if self._is_message(value, scope):
                    self._returning.add(function)
            case ast.Match(subject=subject, cases=cases):
                if self._is_message(subject, scope) and any(_has_text(c.pattern) for c in cases):
                    self._report(subject, "a `match` on the text of an error")
            case _:
                pass
        for field in ast.iter_child_nodes(node):
            match field:
                case ast.ExceptHandler(name=name, body=body):
                    if name is not None:
                        _set(scope, name, scope.errors)
                    self._block(body, scope, function)
                case ast.stmt():
                    self._statement(field, scope, function)
                case ast.match_case(guard=guard, body=body):
                    if guard is not None:
                        self._expression(guard, scope)
                    self._block(body, scope, function)
                case ast.withitem(context_expr=entered, optional_vars=name_of):
                    self._expression(entered, scope)
                    if name_of is not None:
                        self._assign(name_of, entered, scope)
                case ast.expr():
                    self._expression(field, scope)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, outer: _Scope) -> None:
        scope = _Scope(outer)
        for argument in _arguments(node):
            annotation = ast.unparse(argument.annotation) if argument.annotation else ""
            if (node.name, argument.arg) in self._passed:
                scope.messages.add(argument.arg)
            elif _ERROR_TYPES.search(annotation):
                scope.errors.add(argument.arg)
            elif annotation:
                scope.others.add(argument.arg)
        self._block(node.body, scope, node.name)

    def _assign(self, target: ast.expr, value: ast.expr, scope: _Scope) -> None:
        match target, value:
            case ast.Name(id=name), _:
                if self._is_message(value, scope):
                    _set(scope, name, scope.messages)
                elif self._is_error(value, scope):
                    _set(scope, name, scope.errors)
                elif not isinstance(value, ast.Call):
                    _set(scope, name, scope.others)
            case ast.Tuple(elts=targets), ast.Tuple(elts=values):
                for one, its_value in zip(targets, values, strict=False):
                    self._assign(one, its_value, scope)
            case ast.Tuple(elts=targets), _ if self._is_message(value, scope):
                for one in targets:
                    self._assign(one, value, scope)

    # ---- expressions

    def _expression(self, node: ast.expr, scope: _Scope) -> None:
        for each in _walk(node):
            match each:
                case ast.NamedExpr(target=target, value=value):
                    self._assign(target, value, scope)
                case ast.comprehension(target=target, iter=iterated):
                    if self._is_message(iterated, scope):
                        self._assign(target, iterated, scope)
        for each in _walk(node):
            match each:
                case ast.Compare(left=left, ops=ops, comparators=rights):
                    self._compare([left, *rights], ops, scope)
                case ast.Call():
                    self._call(each, scope)

    def _compare(
        self, operands: Sequence[ast.expr], ops: Sequence[ast.cmpop], scope: _Scope
    ) -> None:
        for left, op, right in zip(operands, ops, operands[1:], strict=False):
            match op:
                case ast.In() | ast.NotIn():
                    texts = [right, *([left] if _is_constant(right) else [])]
                case ast.Eq() | ast.NotEq():
                    texts = [left, right] if not _is_empty(left) and not _is_empty(right) else []
                case _:
                    texts = []
            if any(self._is_message(text, scope) for text in texts):
                self._report(left, "a comparison with the text of an error")

    def _call(self, node: ast.Call, scope: _Scope) -> None:
        match node.func:
            case ast.Attribute(value=value, attr=attr):
                if attr in _TESTS and self._is_message(value, scope):
                    self._report(node, f"`{attr}` of the text of an error")
                if attr in _SEARCHES and any(self._is_message(a, scope) for a in node.args):
                    self._report(node, f"a regular expression ({attr}) on the text of an error")
                if attr == "abort" and not self._aborts and "context" in ast.unparse(value):
                    self._report(node, "a call is ended without a reason: use rpc.status.abort")
                called = attr
            case ast.Name(id=called):
                pass
            case _:
                return
        function = self._functions.get(called)
        if function is None:
            return
        positional = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        if positional[:1] in (["self"], ["cls"]):
            del positional[0]
        given = [*zip(positional, node.args, strict=False)]
        given += [(k.arg, k.value) for k in node.keywords if k.arg is not None]
        self._passed |= {(called, name) for name, a in given if self._is_message(a, scope)}

    def _is_error(self, node: ast.expr, scope: _Scope) -> bool:
        match node:
            case ast.Name(id=name):
                return scope.is_error(name)
            case ast.Attribute(attr=attr):
                return attr in ("__cause__", "__context__", "orig") or (
                    _ERROR_NAMES.fullmatch(attr) is not None
                )
            case ast.Call(
                func=ast.Name(id="getattr"), args=[of, ast.Constant(value="orig" | "__cause__"), *_]
            ):
                return self._is_error(of, scope)
            case ast.Call(func=ast.Attribute(attr="exception" | "getCause" | "getException")):
                return True
            case ast.BoolOp(values=values):
                return any(self._is_error(value, scope) for value in values)
            case ast.NamedExpr(value=value):
                return self._is_error(value, scope)
            case ast.IfExp(body=body, orelse=orelse):
                return self._is_error(body, scope) or self._is_error(orelse, scope)
        return False

    def _is_message(self, node: ast.expr, scope: _Scope) -> bool:
        def message(value: ast.expr) -> bool:
            return self._is_message(value, scope)

        match node:
            case ast.Name(id=name):
                return scope.is_message(name)
            case ast.Call(func=ast.Name(id=name), args=[of, *_]) if name in _TO_TEXT:
                return self._is_error(of, scope) or message(of)
            case ast.Call(func=ast.Name(id=name)) if name in self._returning:
                return True
            case ast.Call(func=ast.Name(id="getattr"), args=[of, ast.Constant(value=attr), *_]):
                return attr in _TEXT_ATTRIBUTES and self._is_error(of, scope)
            case ast.Call(func=ast.Attribute(value=of, attr=attr), args=arguments):
                if attr in ("getMessage", "getLocalizedMessage"):
                    return True
                if attr in _TEXT_METHODS and not arguments:
                    return self._is_error(of, scope)
                return attr in _CHANGES and any(map(message, (of, *arguments)))
            case ast.Attribute(value=of, attr=attr):
                return attr in _TEXT_ATTRIBUTES and self._is_error(of, scope)
            case ast.Subscript(value=value):
                return message(value)
            case ast.BoolOp(values=values) | ast.JoinedStr(values=values):
                return any(map(message, values))
            case ast.FormattedValue(value=value):
                return self._is_error(value, scope) or message(value)
            case ast.BinOp(left=left, right=right):
                return message(left) or message(right)
            case ast.IfExp(body=body, orelse=orelse):
                return message(body) or message(orelse)
            case ast.NamedExpr(value=value) | ast.Starred(value=value):
                return message(value)
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return any(map(message, elements))
            case ast.GeneratorExp(elt=element) | ast.ListComp(elt=element):
                return message(element)
        return False

    def _report(self, node: ast.expr, problem: str) -> None:
        self.found.setdefault((node.lineno, node.end_lineno or node.lineno), problem)


def _set(scope: _Scope, name: str, to: set[str]) -> None:
    for names in (scope.errors, scope.messages, scope.others):
        names.discard(name)
    to.add(name)


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.arg]:
    yield from (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)


def _walk(node: ast.expr) -> Iterator[ast.AST]:
    """Yields the node and the expressions in it."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr | ast.comprehension | ast.keyword):
            yield from _walk(child)  # type: ignore[arg-type]


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant | ast.Tuple | ast.Set | ast.List)


def _is_empty(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not node.value


def _has_text(pattern: ast.pattern) -> bool:
    constants = (n.value for n in ast.walk(pattern) if isinstance(n, ast.Constant))
    return any(isinstance(value, str) and value for value in constants)


def findings(source: str, path: str) -> list[Finding]:
    """Returns the tests in the source of one module that no comment allows."""
    lines = source.splitlines()
    found = _Module(ast.parse(source), aborts=path.endswith(ABORTS)).run()
    return [
        Finding(path, first, problem)
        for (first, last), problem in sorted(found.items())
        if not _is_allowed(lines, first, last)
    ]


def _is_allowed(lines: Sequence[str], first: int, last: int) -> bool:
    before = lines[first - 2] if first > 1 else ""
    own = before if before.lstrip().startswith("#") else ""
    return any(MARK.search(line) for line in (own, *lines[first - 1 : last]))


def main(paths: Sequence[str]) -> int:
    files = [
        file
        for path in map(Path, paths)
        for file in (sorted(path.rglob("*.py")) if path.is_dir() else [path])
        if "_proto" not in file.parts
    ]
    found = [f for file in files for f in findings(file.read_text(encoding="utf-8"), str(file))]
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
