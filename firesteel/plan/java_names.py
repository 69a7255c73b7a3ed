"""The names of Java's packages and classes, which Py4J resolves in the JVM."""

from __future__ import annotations

from typing import Any

_ROOT_PACKAGES = frozenset({"com", "java", "javax", "org", "scala"})


def remember_names(client: Any) -> None:
    """Makes the client resolve each dotted name in the JVM only once.

    To resolve `jvm.java.util.ArrayList`, it requests `java`, `java.util` and the whole name each
    time, and for the first two the JVM searches all of Spark's jars for classes of these names.
    """
    from py4j import protocol

    question = protocol.REFLECTION_COMMAND_NAME + protocol.REFL_GET_UNKNOWN_SUB_COMMAND_NAME
    send = client.send_command
    answers: dict[str, Any] = {}

    def send_unless_known(command: str, *args: Any, **kwargs: Any) -> Any:
        if not command.startswith(question):
            return send(command, *args, **kwargs)
        answer = answers.get(command)
        if answer is None:
            answer = send(command, *args, **kwargs)
            name = command.removeprefix(question).partition("\n")[0]
            if _is_lasting(name, answer):
                answers[command] = answer
        return answer

    client.send_command = send_unless_known


def _is_lasting(name: str, answer: str) -> bool:
    """Returns whether the name's meaning is permanent. A single word may change its meaning after
    an import, and a name that is not a class may become one.
    """
    from py4j import protocol

    *packages, last = name.split(".")
    if not packages and last not in _ROOT_PACKAGES:
        return False
    if answer == protocol.SUCCESS_PACKAGE:
        return last[:1].islower()
    return answer.startswith(protocol.SUCCESS_CLASS)
