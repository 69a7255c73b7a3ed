"""Programs that are uploaded and run: what Flink calls jars."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from dispatcher.rest.forms import chunks, parts
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.programs import ProgramRun, Programs, UploadedProgram
from dispatcher.rest.requests import (
    TOKEN,
    Handler,
    Refusal,
    check_directories,
    json_body,
    path_of,
    text_of,
)
from firesteel.common.config import options

_CLAIM_MODES = ("CLAIM", "NO_CLAIM")
_FIELDS = (
    "entryClass",
    "programArgs",
    "programArgsList",
    "parallelism",
    "jobId",
    "allowNonRestoredState",
    "savepointPath",
    "claimMode",
    "restoreMode",
    "flinkConfiguration",
)
# The parameters of a URL, which Flink accepts as well as the fields of a body.
_PARAMETERS = {
    "entryClass": "entry-class",
    "programArgs": "program-args",
    "parallelism": "parallelism",
    "allowNonRestoredState": "allowNonRestoredState",
    "savepointPath": "savepointPath",
}


class JarRoutes:
    def __init__(self, gateway: Gateway, programs: Programs) -> None:
        self._gateway = gateway
        self._programs = programs

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "GET /jars": self._list,
            "POST /jars/upload": self._upload,
            "DELETE /jars/{jar}": self._delete,
            "POST /jars/{jar}/run": self._run,
            "GET /jars/{jar}/plan": self._plan,
            "POST /jars/{jar}/plan": self._plan,
            "POST /jobs": self._refuse_graph,
        }

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "address": f"{request.scheme}://{request.host}",
                "files": [_shown(program) for program in self._programs.store.list()],
            }
        )

    async def _upload(self, request: web.Request) -> web.Response:
        self._programs.check_enabled()
        async for part in parts(request):
            if part.name == "jarfile":
                program = await self._programs.store.add(part.filename or "program", chunks(part))
                return web.json_response({"filename": program.program_id, "status": "success"})
        raise Refusal(400, "the form has no file in its field jarfile")

    async def _delete(self, request: web.Request) -> web.Response:
        self._programs.store.delete(request.match_info["jar"])
        return web.json_response({})

    async def _run(self, request: web.Request) -> web.Response:
        job_ids = (await self._executed(request, plan_only=False)).outcome.job_ids
        return web.json_response({"jobid": job_ids[0], "jobids": job_ids})

    async def _plan(self, request: web.Request) -> web.Response:
        run = await self._executed(request, plan_only=True)
        return web.json_response({"plan": _plan(run)})

    async def _executed(self, request: web.Request, *, plan_only: bool) -> ProgramRun:
        program = self._programs.store.find(request.match_info["jar"])
        fields = _fields(await json_body(request, *_FIELDS), request)
        await self._gateway.record_program(request)
        return await self._programs.run(
            program,
            address=self._gateway.address,
            token=request.get(TOKEN, ""),
            entry=text_of(fields, "entryClass"),
            arguments=_arguments(fields),
            overrides=_overrides(fields),
            job_id=text_of(fields, "jobId"),
            plan_only=plan_only,
        )

    async def _refuse_graph(self, request: web.Request) -> web.Response:
        raise Refusal(
            400,
            "this is a job graph of Flink's Java client, which Firesteel cannot run: it runs Python"
            " programs. Use `firesteel run job.py`, or upload a .py file, or what `firesteel"
            " package job.py` writes, to /jars/upload and run it with /jars/ID/run",
        )


def _shown(program: UploadedProgram) -> Mapping[str, Any]:
    names = [name for name in program.entries if name] or [program.name]
    return {
        "id": program.program_id,
        "name": program.name,
        "uploaded": program.uploaded_ms,
        "entry": [{"name": name, "description": None} for name in names],
    }


def _plan(run: ProgramRun) -> Mapping[str, Any]:
    return {
        "jid": "",
        "name": run.outcome.name,
        "type": "STREAMING",
        "nodes": [
            {
                "id": vertex.vertex_id,
                "parallelism": vertex.parallelism,
                "operator": "",
                "operator_strategy": "",
                "description": vertex.name,
                "optimizer_properties": {},
                "inputs": [
                    {"num": number, "id": source, "ship_strategy": partitioner, "exchange": ""}
                    for number, (source, partitioner) in enumerate(vertex.inputs)
                ],
            }
            for vertex in run.outcome.vertices
        ],
    }


# ---- the fields of a request


def _fields(body: Mapping[str, Any], request: web.Request) -> Mapping[str, Any]:
    """Returns the fields of the body, which win, and the parameters of the URL."""
    of_url = {
        field: request.query[parameter]
        for field, parameter in _PARAMETERS.items()
        if parameter in request.query
    }
    return of_url | {field: value for field, value in body.items() if value is not None}


def _arguments(fields: Mapping[str, Any]) -> list[str]:
    listed = fields.get("programArgsList")
    if not listed:
        try:
            return shlex.split(text_of(fields, "programArgs"))
        except ValueError as error:
            raise Refusal(400, f"programArgs cannot be split into arguments: {error}") from None
    if text_of(fields, "programArgs"):
        raise Refusal(400, "programArgs and programArgsList are both given; send one of them")
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise Refusal(400, "programArgsList must be a list of strings")
    return listed


def _overrides(fields: Mapping[str, Any]) -> dict[str, str]:
    """Returns the configuration of the run's jobs."""
    given = fields.get("flinkConfiguration", {})
    if not isinstance(given, dict) or not all(isinstance(text, str) for text in given.values()):
        raise Refusal(400, "flinkConfiguration must be an object with strings")
    check_directories(given)
    overrides = dict(given)
    if parallelism := fields.get("parallelism"):
        overrides[options.PARALLELISM.key] = str(parallelism)
    if path := path_of(fields, "savepointPath"):
        overrides[options.RECOVERY_PATH.key] = path
    if fields.get("allowNonRestoredState") in (True, "true"):
        overrides[options.RECOVERY_ALLOW_UNMATCHED.key] = "true"
    if mode := text_of(fields, "claimMode") or text_of(fields, "restoreMode"):
        if mode not in _CLAIM_MODES:
            raise Refusal(400, f"claimMode {mode[:80]!r} is not one of {', '.join(_CLAIM_MODES)}")
        overrides[options.RECOVERY_CLAIM_MODE.key] = mode
    return overrides
