"""The modules that are shipped with a program: those that its functions need and no installation
has.

A module is installed if it is imported from the standard library, from `site-packages`, or from
where Firesteel itself is imported. All others are local: next to the program, on PYTHONPATH, or in
a project with an editable installation.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import functools
import importlib.util
import os
import site
import sys
import sysconfig
import threading
import zipimport
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from pathlib import Path
from types import CodeType

import cloudpickle

from firesteel.common.installation import services_folder
from firesteel.errors import InvalidProgram

# Slots have loaded packages with these names, which a module of the program cannot replace there.
TAKEN_IN_SLOTS = frozenset({"taskexecutor"})
MODULE_SUFFIXES = (".py", ".pyi", *EXTENSION_SUFFIXES)
_LEFT_OUT = frozenset({"__pycache__", "node_modules"})
_HOME = Path(__file__).resolve().parents[2]
_PARSING = threading.Lock()  # CPython 3.11 fails if two threads make trees (SystemError)


@dataclass(frozen=True, slots=True)
class LocalModule:
    """A top-level module or package of this machine.

    `places` has its file, its folder, the folders of a namespace package, or the zip file that it
    is imported from.
    """

    name: str
    places: tuple[Path, ...]
    zipped: bool = False

    def files(self) -> Iterator[tuple[str, Path]]:
        """Yields the module's files, each with its path below the folder to import it from."""
        for place in self.places:
            if place.is_file():
                yield place.name, place
                continue
            for folder, folders, names in os.walk(place):
                folders[:] = sorted(each for each in folders if _belongs(Path(folder, each)))
                for name in sorted(names):
                    file = Path(folder, name)
                    if not name.startswith(".") and file.is_file():
                        yield str(Path(self.name, file.relative_to(place))), file


def local_module(name: str) -> LocalModule | None:
    """Returns the local module that `import name` finds, for a top-level name; None if it finds an
    installed one, or nothing. The program's main file is not a module.
    """
    spec = None if name in ("__main__", "__mp_main__") else _spec(name)
    if spec is None:
        return None
    if isinstance(spec.loader, zipimport.zipimporter):
        archive = Path(spec.loader.archive).resolve()
        return None if _is_installed(archive.parent) else LocalModule(name, (archive,), zipped=True)
    if spec.submodule_search_locations is not None:
        candidates = [Path(place).resolve() for place in spec.submodule_search_locations]
    else:
        candidates = [Path(spec.origin).resolve()] if spec.has_location and spec.origin else []
    places = tuple(
        place for place in candidates if place.exists() and not _is_installed(place.parent)
    )
    return LocalModule(name, places) if places else None


def local_modules(names: Iterable[str]) -> list[LocalModule]:
    """Returns which of these top-level modules are local, and the local modules that their files
    import.

    Raises InvalidProgram if one of the files imports a name that slots have taken.
    """
    modules: dict[str, LocalModule] = {}
    pending = sorted(names)
    while pending:
        name = pending.pop()
        if name in modules or name in TAKEN_IN_SLOTS:
            continue
        if (module := local_module(name)) is None:
            continue
        modules[name] = module
        for _, file in () if module.zipped else module.files():
            if file.suffix != ".py":
                continue
            imports = imports_of_file(file)
            if taken := sorted(each for each in imports & TAKEN_IN_SLOTS if local_module(each)):
                raise InvalidProgram(_taken(f"{file} imports", taken[0]))
            pending += sorted(imports)
    return [modules[name] for name in sorted(modules)]


def imports_of_file(file: Path) -> frozenset[str]:
    """Returns the top-level modules that a Python file imports anywhere."""
    return _imports(str(file), file.stat().st_mtime_ns)


def imports_of(code: CodeType, package: str) -> Iterator[str]:
    """Yields top-level modules that a function's code imports when it runs. `package` is its
    own.
    """
    instructions = [each for each in dis.get_instructions(code) if each.opname != "EXTENDED_ARG"]
    for index, instruction in enumerate(instructions):
        if instruction.opname == "IMPORT_NAME":
            level = instructions[index - 2].argval  # what is pushed before the names to import
            yield (package if level else instruction.argval).partition(".")[0]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from imports_of(constant, package)


def is_by_value(name: str) -> bool:
    """Whether cloudpickle pickles definitions of the module with this full name by value."""
    parts = name.split(".")
    registered = cloudpickle.list_registry_pickle_by_value()
    return any(".".join(parts[:end]) in registered for end in range(1, len(parts) + 1))


@contextlib.contextmanager
def taken_by_value() -> Iterator[None]:
    """Pickles functions by value, inside the `with` block, if they are from modules of the program
    whose names slots have taken.
    """
    by_value = [
        sys.modules[name]
        for name in TAKEN_IN_SLOTS
        if name in sys.modules and not is_by_value(name) and local_module(name) is not None
    ]
    for module in by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in by_value:
            cloudpickle.unregister_pickle_by_value(module)


def refuse_taken(names: Iterable[str]) -> None:
    """Raises InvalidProgram if functions import one of these when they run and would not get the
    program's module.
    """
    for name in sorted(TAKEN_IN_SLOTS.intersection(names)):
        if local_module(name) is not None:
            raise InvalidProgram(_taken("a function imports", name))


def _taken(what: str, name: str) -> str:
    return (
        f"{what} the program's module {name!r}, but in slots this is the name of a package of"
        " Firesteel: import it at the top of the program's main file, which ships its"
        " functions by value, or rename the module"
    )


def _spec(name: str) -> ModuleSpec | None:
    try:
        module = sys.modules.get(name)
        if module is not None and module.__spec__ is None:
            file = getattr(module, "__file__", None)
            return importlib.util.spec_from_file_location(name, file) if file else None
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):  # sys.modules may contain anything
        return None


def _is_installed(root: Path) -> bool:
    """Whether modules imported from this folder count as installed."""
    return (
        root in _installation()
        or any(part in ("site-packages", "dist-packages") for part in root.parts)
        or root.is_relative_to(_standard_library())
    )


@functools.cache
def _installation() -> frozenset[Path]:
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    folders += [sysconfig.get_path(name) for name in ("purelib", "platlib", "platstdlib")]
    return frozenset({_HOME, services_folder(), *(Path(folder).resolve() for folder in folders)})


@functools.cache
def _standard_library() -> Path:
    return Path(sysconfig.get_path("stdlib")).resolve()


def _belongs(folder: Path) -> bool:
    """Whether a folder inside a package is part of it."""
    name = folder.name
    return not (name.startswith(".") or name in _LEFT_OUT or (folder / "pyvenv.cfg").exists())


@functools.lru_cache(maxsize=10_000)
def _imports(file: str, mtime_ns: int) -> frozenset[str]:
    """Returns the top-level modules that a file imports anywhere. `mtime_ns` is part of the cache's
    key.
    """
    try:
        with _PARSING:
            tree = ast.parse(Path(file).read_bytes())
    except (SyntaxError, ValueError, OSError):
        return frozenset()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return frozenset(names)
