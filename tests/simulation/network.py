"""Streams between processes, as gRPC over TCP behaves: in order, late, and lost only when the
stream breaks.

A stream has two ends. It can end in order (`close`), be cancelled by one end or by a process' death
(the other end notices after what was sent before has arrived), be broken by the network (both
notice, what was under way is lost), or fall silent (nobody notices; only heartbeats tell).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.processes import Process

CONNECT_TIMEOUT_S = 3.0


class End:
    """One end of a stream, held by `owner`. `on_message` and `on_end` are set by it."""

    def __init__(self, network: Network, owner: Process, method: str) -> None:
        self.owner = owner
        self.method = method
        self.open = True  # as its owner sees it
        self.peer: End | None = None
        self.silent = False  # both ends of a stream have the same value
        self.broken = False  # as well
        self.on_message: Callable[[Any], None] = lambda message: None
        self.on_end: Callable[[bool, str], None] = lambda in_order, cause: None
        self._network = network
        self._unsent: list[Any] = []  # until the stream stands
        self._last_arrival = 0.0

    def send(self, message: Any) -> None:
        if not self.open:
            return
        if self.peer is None:
            self._unsent.append(message)
        elif self._network.traps and self._network.springs(self, message):
            pass  # lost
        else:
            self._carry(lambda peer: peer.on_message(message))

    def close(self) -> None:
        """Ends the stream in order, after what was sent."""
        self._finish(True, "the peer ended the stream")

    def cancel(self, cause: str = "the peer cancelled the stream") -> None:
        self._finish(False, cause)

    def _finish(self, in_order: bool, cause: str) -> None:
        if not self.open:
            return
        self.open = False
        if self.peer is not None:
            self._carry(lambda peer: peer.ended(in_order, cause))

    def ended(self, in_order: bool, cause: str) -> None:
        """The stream is over, and this end learns it."""
        if self.open and self.owner.alive:
            self.open = False
            self.on_end(in_order, cause)

    def joined(self, peer: End) -> None:
        """The stream stands: what has waited goes out."""
        self.peer = peer
        waiting, self._unsent = self._unsent, []
        for message in waiting:
            self.send(message)

    def _carry(self, deliver: Callable[[End], None]) -> None:
        peer = self.peer
        assert peer is not None
        world = self._network.world
        self._last_arrival = max(self._last_arrival, world.now + self._network.delay_s())

        def arrive() -> None:
            lost = self.silent or self.broken or self._network.cut_off(self.owner, peer.owner)
            if not lost and peer.open and peer.owner.alive:
                deliver(peer)

        world.after(self._last_arrival - world.now, arrive)


class Network:
    def __init__(self, world: World) -> None:
        self.world = world
        self.slowness = 1.0
        self.listening: dict[str, Process] = {}
        self._streams: list[tuple[End, End]] = []
        self._cuts: list[tuple[Process, Process]] = []
        self.traps: list[str] = []  # kinds of messages; the next of each is lost, with its stream

    def delay_s(self) -> float:
        """Mostly short; now and then one message is much later than the others."""
        random = self.world.random
        return self.slowness * (
            random.uniform(0.0002, 0.003) if random.random() < 0.97 else random.uniform(0.003, 0.3)
        )

    def connect(
        self, owner: Process, address: str, method: str, on_open: Callable[[], None] = lambda: None
    ) -> End:
        """`on_end` of the returned end is called if nobody listens there."""
        client = End(self, owner, method)

        def reach() -> None:
            server_process = self.listening.get(address)
            if not client.open or not owner.alive:
                return
            if server_process is None or not server_process.alive:
                self.world.after(
                    self.delay_s(), lambda: client.ended(False, f"nobody listens at {address}")
                )
                return
            if server_process.frozen or self.cut_off(owner, server_process):
                self.world.after(CONNECT_TIMEOUT_S, lambda: client.ended(False, "no answer"))
                return
            server = End(self, server_process, method)
            self._streams = [(a, b) for a, b in self._streams if a.open or b.open]
            self._streams.append((client, server))
            server.joined(client)
            server_process.accept(method, server)
            client.joined(server)
            self.world.after(
                self.delay_s(), lambda: on_open() if client.open and owner.alive else None
            )

        self.world.after(self.delay_s(), reach)
        return client

    def open_streams(self, method: str = "") -> list[tuple[End, End]]:
        """In the order they were opened; `method` narrows to those of one kind."""
        return [
            (a, b)
            for a, b in self._streams
            if a.open and b.open and method in a.method and not a.silent
        ]

    def break_stream(self, stream: tuple[End, End]) -> None:
        for end in stream:
            end.broken = True
        for end in stream:
            self.world.after(
                self.world.between(0.0, 0.5),
                lambda end=end: end.ended(False, "the network broke the stream"),
            )

    def springs(self, end: End, message: Any) -> bool:
        """Whether this message is one that a trap waits for. Then its stream breaks under it."""
        kind = message.WhichOneof("message")
        if kind not in self.traps:
            return False
        self.traps.remove(kind)
        self.world.note("trap", f"{kind} from {end.owner.name} is lost, and its stream breaks")
        assert end.peer is not None
        self.break_stream((end, end.peer))
        return True

    def silence(self, stream: tuple[End, End]) -> None:
        for end in stream:
            end.silent = True

    def cut(self, one: Process, other: Process, for_s: float) -> None:
        """Nothing passes between the two. Streams that exist do not survive it: their segments were
        given up.
        """
        pair = (one, other)
        self._cuts.append(pair)
        for stream in self._streams:
            if {stream[0].owner, stream[1].owner} == set(pair):
                self.silence(stream)
        self.world.after(for_s, lambda: self._cuts.remove(pair))

    def cut_off(self, one: Process, other: Process) -> bool:
        return any({one, other} == set(pair) for pair in self._cuts)

    def died(self, process: Process, *, silently: bool) -> None:
        """`silently`: its machine is gone, so no operating system tells the peers."""
        for stream in self._streams:
            for end in stream:
                if end.owner is process and end.open:
                    if silently:
                        self.silence(stream)
                        end.open = False
                    else:
                        end.cancel("the peer's process died")
