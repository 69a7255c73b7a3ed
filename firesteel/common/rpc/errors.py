"""Errors of a conversation between two processes, named by whose fault they are, and the limit of
its messages.

gRPC ends the stream of a message over its limit, with everything else on it. So every process
checks the size of a message of user data before it sends it, and refuses the data by its name.
"""

from __future__ import annotations

from typing import Any

from firesteel.common.units import MIB
from firesteel.errors import FiresteelError


class ProtocolError(Exception):
    """A message does not fit the state of the conversation."""


class LocalProtocolError(ProtocolError):
    """This process is about to send a message that it must not send: a bug here."""


class RemoteProtocolError(ProtocolError):
    """The peer sent a message that has no meaning here; the text names its fault."""


# The largest job (client.payload.max-size) fits, and what the services add to it.
MAX_MESSAGE_BYTES = 64 * MIB
MAX_PAYLOAD_BYTES = MAX_MESSAGE_BYTES - MIB  # of what a service may relay in a message


class MessageTooLarge(FiresteelError):
    """A message is over the limit, and was not sent."""


def check_size(message: Any, what: str, limit_bytes: int = MAX_PAYLOAD_BYTES) -> None:
    """Raises MessageTooLarge for a Protobuf message over the limit. `what` names its content."""
    size_bytes = message.ByteSize()
    if size_bytes > limit_bytes:
        raise MessageTooLarge(
            f"{what} is too large to be sent: it has {size_bytes:,} bytes, and the limit is"
            f" {limit_bytes:,}"
        )
