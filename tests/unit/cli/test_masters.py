"""The masters of a pod: the label of the leader, connections on loopback, and output."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

from firesteel.client.masters.leadership import marks_of
from firesteel.client.masters.loopback import Relay
from firesteel.client.masters.output import Output
from firesteel.common.leader import Office

POD = "127.0.0.2"


def test_the_service_selects_the_leading_resource_manager_and_standbys_end_first() -> None:
    cost = "controller.kubernetes.io/pod-deletion-cost"
    label = "firesteel/leads"
    assert marks_of(set()) == {"labels": {label: None}, "annotations": {cost: None}}
    dispatcher = marks_of({Office.DISPATCHER})
    assert dispatcher == {"labels": {label: None}, "annotations": {cost: "1"}}
    both = marks_of({Office.DISPATCHER, Office.RESOURCE_MANAGER})
    assert both == {"labels": {label: "resourcemanager"}, "annotations": {cost: "2"}}


async def test_connections_on_loopback_reach_the_address_of_the_pod() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())  # after the client has ended its half
        writer.close()

    server = await asyncio.start_server(echo, POD, 0)
    port = server.sockets[0].getsockname()[1]
    relay = asyncio.create_task(Relay(POD, [port], listen="127.0.0.3").run())
    try:

        async def listens() -> bool:
            try:
                _, writer = await asyncio.open_connection("127.0.0.3", port)
            except ConnectionRefusedError:
                return False
            writer.close()
            await writer.wait_closed()
            return True

        while not await listens():
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection("127.0.0.3", port)
        writer.write(b"a" * 200_000)
        writer.write_eof()
        assert await reader.read() == b"A" * 200_000
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        reader, writer = await asyncio.open_connection("127.0.0.3", port)
        assert await reader.read() == b"", "the master is away"
        writer.close()
        await writer.wait_closed()
    finally:
        relay.cancel()
        await asyncio.gather(relay, return_exceptions=True)


def test_logs_are_copied_once_from_where_they_are(tmp_path: Path) -> None:
    earlier, later = tmp_path / "dispatcher.log", tmp_path / "resourcemanager.log"
    earlier.write_bytes(b"of an earlier container\n")
    shown = io.BytesIO()
    output = Output([earlier, later], shown)
    output.copy()
    assert shown.getvalue() == b""
    with earlier.open("ab") as file:
        file.write(b"one\n")
    later.write_bytes(b"two\n")
    output.copy()
    output.copy()
    assert shown.getvalue() == b"one\ntwo\n"
    later.write_bytes(b"3\n")  # shorter: it has started over
    output.copy()
    assert shown.getvalue() == b"one\ntwo\n3\n"
