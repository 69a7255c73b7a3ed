"""Runs a program that comes with its request."""

from __future__ import annotations

import json
from collections.abc import Mapping

from aiohttp import web

from dispatcher.rest.forms import chunks, parts, text
from dispatcher.rest.gateway import Gateway
from dispatcher.rest.programs import Programs, UploadedProgram
from dispatcher.rest.requests import TOKEN, Handler, Refusal, check_directories, path_of
from firesteel.common.config import options

_FIELDS = frozenset({"arguments", "options", "savepoint", "entry", "job_id"})


class ProgramRoutes:
    def __init__(self, gateway: Gateway, programs: Programs) -> None:
        self._gateway = gateway
        self._programs = programs

    def handlers(self) -> Mapping[str, Handler]:
        return {"POST /firesteel/v1/jobs": self._submit}

    async def _submit(self, request: web.Request) -> web.Response:
        self._programs.check_enabled()
        program: UploadedProgram | None = None
        fields: dict[str, str] = {}
        try:
            async for part in parts(request):
                if part.name == "program" and program is None:
                    name = part.filename or "program"
                    program = await self._programs.store.add(name, chunks(part))
                elif part.name in _FIELDS:
                    fields[part.name] = await text(part)
                else:
                    known = ", ".join(sorted(_FIELDS))
                    raise Refusal(400, f"the form has program once, and may have {known}")
            if program is None:
                raise Refusal(400, "the form has no file in its field program")
            await self._gateway.record_program(request)
            run = await self._programs.run(
                program,
                address=self._gateway.address,
                token=request.get(TOKEN, ""),
                entry=fields.get("entry", ""),
                arguments=_arguments(fields.get("arguments", "[]")),
                overrides=_overrides(fields),
                job_id=fields.get("job_id", ""),
            )
        finally:
            if program is not None:
                self._programs.store.delete(program.program_id)
        job_ids = run.outcome.job_ids
        return web.json_response(
            {
                "job_id": job_ids[0],
                "job_ids": job_ids,
                "name": run.outcome.name,
                "output": run.output,
            }
        )


def _arguments(text: str) -> list[str]:
    arguments = _json("arguments", text)
    if not isinstance(arguments, list) or not all(isinstance(each, str) for each in arguments):
        raise Refusal(400, "arguments must be a JSON list of strings")
    return arguments


def _overrides(fields: Mapping[str, str]) -> dict[str, str]:
    given = _json("options", fields.get("options", "{}"))
    if not isinstance(given, dict) or not all(isinstance(each, str) for each in given.values()):
        raise Refusal(400, "options must be a JSON object with strings, by keys of configuration")
    check_directories(given)
    savepoint = path_of(fields, "savepoint")
    return given | ({options.RECOVERY_PATH.key: savepoint} if savepoint else {})


def _json(name: str, text: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise Refusal(400, f"{name} is not JSON: {error}") from None
