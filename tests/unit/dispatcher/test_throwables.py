"""Failures as Flink's Java clients read them."""

from __future__ import annotations

import base64

from dispatcher.rest.flink.throwables import MAX_CHARS, failure_cause, serialized_throwable

# Java 17's ObjectInputStream reads a SerializedThrowable of Flink 2.3 with this message from it.
AS_JAVA_READS_IT = bytes.fromhex(
    "aced0005737200296f72672e6170616368652e666c696e6b2e7574696c2e53657269616c697a65645468726f"
    "7761626c6565169df51fa713f30200024c001966756c6c537472696e676966696564537461636b5472616365"
    "7400124c6a6176612f6c616e672f537472696e673b4c00166f726967696e616c4572726f72436c6173734e61"
    "6d657400124c6a6176612f6c616e672f537472696e673b787200136a6176612e6c616e672e45786365707469"
    "6f6ed0fd1f3e1a3b1cc4020000787200136a6176612e6c616e672e5468726f7761626c65d5c635273977b8cb"
    "0300014c000d64657461696c4d6573736167657400124c6a6176612f6c616e672f537472696e673b78707400"
    "1a6e6f2073617665706f696e743a20c3a920c08020eda0bdedb880787400416f72672e6170616368652e666c"
    "696e6b2e7574696c2e466c696e6b457863657074696f6e3a206e6f2073617665706f696e743a20c3a920c080"
    "20eda0bdedb8800a7400246f72672e6170616368652e666c696e6b2e7574696c2e466c696e6b457863657074"
    "696f6e"
)


def test_a_message_becomes_a_java_exception() -> None:
    assert serialized_throwable("no savepoint: é \0 😀") == AS_JAVA_READS_IT


def test_a_failure_has_its_class_its_text_and_the_exception() -> None:
    cause = failure_cause("the disk is full")
    assert cause["class"] == "org.apache.flink.util.FlinkException"
    assert cause["stack-trace"] == "org.apache.flink.util.FlinkException: the disk is full\n"
    stream = base64.b64decode(cause["serialized-throwable"])
    assert stream == serialized_throwable("the disk is full")


def test_the_strings_of_a_long_message_fit() -> None:
    for character in ("x", "é", "😀", "\0"):
        stream = serialized_throwable(character * 100_000)
        assert len(stream) < 2 * 65_536 + 1_000
        assert serialized_throwable(character * (MAX_CHARS + 1)) == stream
