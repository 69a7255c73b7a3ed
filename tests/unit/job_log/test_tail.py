"""Logs that are read while they grow and start over."""

from __future__ import annotations

from pathlib import Path

from firesteel.common.job_log.reader import LogTail
from firesteel.common.process.log_files import empty, old


class Log:
    """A log whose every line says when it was written."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "slot-0.log"
        self.written: list[bytes] = []

    def write(self, count: int = 1) -> None:
        for _ in range(count):
            line = (
                b"timestamp=%08d a line of some length, longer than a head that is looked at: "
                % (len(self.written))
                + b"x" * 40
            )
            self.written.append(line)
            with open(self.path, "ab") as file:
                file.write(line + b"\n")

    def start_over(self) -> None:
        line = b"timestamp=%08d starts over" % len(self.written)
        self.written.append(line)
        empty(self.path, line + b"\n")


def rest(tail: LogTail) -> list[bytes]:
    lines = tail.read()
    while not tail.at_end:
        lines += tail.read()
    return lines


def test_every_line_comes_once_whenever_the_log_starts_over(tmp_path: Path) -> None:
    for looks in ("before", "after", "both"):
        folder = tmp_path / looks
        folder.mkdir()
        log = Log(folder)
        log.write(3)
        tail, read = LogTail(log.path), []
        for _ in range(4):
            if looks != "after":
                read += rest(tail)
            log.write(5)
            log.start_over()
            if looks != "before":
                read += rest(tail)
            log.write(2)
        read += rest(tail)
        assert read == log.written
        assert not tail.missing


def test_one_that_started_over_earlier_is_read_from_its_former_log_on(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.write(2)
    log.start_over()
    log.write(2)
    assert rest(LogTail(log.path)) == log.written


def test_a_look_between_the_copy_and_the_truncation_reads_nothing_twice(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.write(4)
    tail = LogTail(log.path)
    read = rest(tail)
    log.write(1)
    old(log.path).write_bytes(log.path.read_bytes())  # copied, not truncated yet
    assert rest(LogTail(log.path)) == log.written
    read += rest(tail)
    log.start_over()
    log.write(1)
    read += rest(tail)
    assert read == log.written


def test_lines_that_were_dropped_before_they_were_read_are_missed(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.write(3)
    tail = LogTail(log.path)
    assert rest(tail) == log.written
    dropped = len(log.written) + 1
    log.write(1)
    log.start_over()
    log.write(1)
    log.start_over()
    assert rest(tail) == log.written[dropped:]
    assert tail.missing


def test_a_line_is_read_once_it_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_bytes(b"one\ntw")
    tail = LogTail(path)
    assert rest(tail) == [b"one"]
    with open(path, "ab") as file:
        file.write(b"o\nthree")
    assert rest(tail) == [b"two"]
    assert tail.last() == [b"three"]


def test_a_log_that_is_not_there_or_is_deleted_has_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    tail = LogTail(path)
    assert rest(tail) == []
    path.write_bytes(b"one\n")
    assert rest(tail) == [b"one"]
    path.unlink()
    assert rest(tail) == []
    assert not tail.missing
