"""`python -m firesteel.client.submitted_program FOLDER`: runs a program for the REST API.

It reads the request from `request.json` in FOLDER and writes the outcome to `outcome.json`, also
after each job. The token of the caller is in the environment. The program runs detached: `execute`
submits its job and returns.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from firesteel.common.config import Configuration
from firesteel.common.job_graph import JobGraph
from firesteel.common.process import announce_ready, watch_lifeline
from firesteel.errors import FiresteelError, JobFailed

REQUEST, OUTCOME = "request.json", "outcome.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRequest:
    """A program to run. `overrides` take precedence over the configuration of its jobs."""

    program: str  # the path of a Python file or a package
    entry: str = ""  # the module of a package; empty: its default one
    arguments: tuple[str, ...] = ()
    address: str  # of the cluster
    configuration: dict[str, str] = field(default_factory=dict)
    overrides: dict[str, str] = field(default_factory=dict)
    job_id: str = ""  # of the first job; empty: a random one
    plan_only: bool = False

    @classmethod
    def read(cls, folder: Path) -> ProgramRequest:
        fields = json.loads((folder / REQUEST).read_text())
        return cls(**fields | {"arguments": tuple(fields["arguments"])})

    def write(self, folder: Path) -> None:
        _write(folder / REQUEST, asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedVertex:
    vertex_id: str
    name: str
    parallelism: int
    inputs: tuple[tuple[str, str], ...]  # the id of the upstream vertex, the partitioner


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOutcome:
    """The outcome of a program. `error` is why it failed: the traceback of the user's code."""

    job_ids: tuple[str, ...] = ()
    name: str = ""  # of the first job
    error: str = ""
    vertices: tuple[PlannedVertex, ...] = ()  # plan_only

    @classmethod
    def read(cls, folder: Path) -> ProgramOutcome | None:
        """Returns None before the first job."""
        try:
            fields: dict[str, Any] = json.loads((folder / OUTCOME).read_text())
        except FileNotFoundError:
            return None
        vertices = tuple(
            PlannedVertex(**vertex | {"inputs": tuple(map(tuple, vertex["inputs"]))})
            for vertex in fields["vertices"]
        )
        return cls(**fields | {"job_ids": tuple(fields["job_ids"]), "vertices": vertices})

    def write(self, folder: Path) -> None:
        _write(folder / OUTCOME, asdict(self))


def _write(path: Path, content: dict[str, Any]) -> None:
    """Replaces the file atomically. Other users cannot read it."""
    unfinished = path.with_suffix(".part")
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(content, file)
    unfinished.replace(path)


def main(folder: Path) -> None:
    from firesteel.client.cli.program import check_syntax, run_program
    from firesteel.client.execution_context import ExecutionContext
    from firesteel.client.package import opened_program

    request = ProgramRequest.read(folder)
    graphs: list[JobGraph] = []
    job_ids: list[str] = []

    def outcome(error: str = "") -> ProgramOutcome:
        name = graphs[0].name if graphs else ""
        vertices = _planned(graphs[0]) if request.plan_only and graphs else ()
        return ProgramOutcome(job_ids=tuple(job_ids), name=name, error=error, vertices=vertices)

    def submitted(job_id: str, graph: JobGraph) -> None:
        job_ids.append(job_id)
        graphs.append(graph)
        outcome().write(folder)

    error = ""
    try:
        with opened_program(Path(request.program), request.entry, folder) as program:
            check_syntax(program.main)
            os.chdir(program.main.parent)
            context = ExecutionContext(
                mode="plan-only" if request.plan_only else "remote",
                conf=Configuration(request.configuration),
                address=request.address,
                job_id=request.job_id,
                overrides=request.overrides,
                on_cluster=True,
                attached=False,
                on_submitted=submitted,
                on_job_graph=graphs.append,
            ).with_files(program.files, program.archives, program.requirements)
            ran = run_program(program.main, request.arguments, context)
            if ran.exit_code not in (None, 0):
                error = f"the program ended with sys.exit({ran.exit_code!r})"
            elif not graphs:
                error = "the program submitted no job, because it never called env.execute()"
    except JobFailed as failure:
        error = failure.error.user_traceback if failure.error else ""
        error = f"{error}\n{failure}".strip()
    except FiresteelError as failure:
        error = "\n".join([str(failure), *getattr(failure, "__notes__", ())])
    outcome(error).write(folder)


def _planned(graph: JobGraph) -> tuple[PlannedVertex, ...]:
    return tuple(
        PlannedVertex(
            vertex_id=vertex.vertex_id,
            name=vertex.name,
            parallelism=vertex.parallelism,
            inputs=tuple(
                (edge.source_vertex_id, edge.partitioner.name)
                for edge in graph.edges
                if edge.target_vertex_id == vertex.vertex_id
            ),
        )
        for vertex in graph.vertices
    )


if __name__ == "__main__":
    watch_lifeline()
    announce_ready()
    main(Path(sys.argv[1]))
