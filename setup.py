"""Generates the gRPC stubs: proto/*.proto -> firesteel/_proto (never committed).

Runs as part of every build (`pip install .`, `pip install -e .`) and alone: `python setup.py
build_proto`.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import ClassVar

from setuptools import Command, setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).resolve().parent
STUBS = HERE / "firesteel" / "_proto"


def generate() -> None:
    from grpc_tools import protoc  # from build-system.requires

    STUBS.mkdir(exist_ok=True)
    # Imports in the stubs are absolute: the messages live in firesteel/_proto as far as protoc can
    # tell.
    arguments = [
        "protoc",
        f"-Ifiresteel/_proto={HERE / 'proto'}",
        f"-I{files('grpc_tools') / '_proto'}",
        f"--python_out={HERE}",
        f"--grpc_python_out={HERE}",
        f"--pyi_out={HERE}",
    ]
    names = sorted(f"firesteel/_proto/{path.name}" for path in (HERE / "proto").glob("*.proto"))
    if protoc.main([*arguments, *names]) != 0:
        raise SystemExit("the gRPC stubs could not be generated; protoc's message is above")
    (STUBS / "__init__.py").write_text('"""The messages and services of proto/; generated."""\n')


class BuildProto(Command):
    description = "generate the gRPC stubs"
    user_options: ClassVar[list[tuple[str, str, str]]] = []

    def initialize_options(self) -> None: ...

    def finalize_options(self) -> None: ...

    def run(self) -> None:
        generate()


class BuildPy(build_py):
    def finalize_options(self) -> None:
        generate()
        # The packages were listed before the stubs were there.
        if "firesteel._proto" not in self.distribution.packages:
            self.distribution.packages.append("firesteel._proto")
        super().finalize_options()


setup(cmdclass={"build_proto": BuildProto, "build_py": BuildPy})
