"""Errors of a conversation between two processes, named by whose fault they are."""

from __future__ import annotations


class ProtocolError(Exception):
    """A message does not fit the state of the conversation."""


class LocalProtocolError(ProtocolError):
    """This process is about to send a message that it must not send: a bug here."""


class RemoteProtocolError(ProtocolError):
    """The peer sent a message that has no meaning here; the text names its fault."""
