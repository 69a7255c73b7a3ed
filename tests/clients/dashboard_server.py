"""Serves the files of Flink's dashboard, and forwards all other requests to a REST API with a token.

    python -m tests.clients.dashboard_server FOLDER REST_URL TOKEN_FILE

Prints its port once it serves, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import aiohttp
from aiohttp import web


async def serve(folder: Path, rest: str, token: str) -> None:
    async with aiohttp.ClientSession() as session:

        async def answer(request: web.Request) -> web.StreamResponse:
            name = request.match_info["name"] or "index.html"
            if name in files:
                return web.FileResponse(files[name])
            async with session.request(
                request.method,
                f"{rest}{request.path_qs}",
                data=await request.read(),
                headers={"Authorization": f"Bearer {token}"},
            ) as forwarded:
                return web.Response(
                    status=forwarded.status,
                    body=await forwarded.read(),
                    content_type=forwarded.content_type,
                )

        files = {
            str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()
        }
        app = web.Application()
        app.router.add_route("*", "/{name:.*}", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]).read_text().strip()))
