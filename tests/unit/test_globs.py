"""Files that a folder or a glob names, and paths that are skipped."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from firesteel.common.globs import files_below, is_pattern, matches_of, not_readable, printable


@pytest.mark.parametrize(
    ("pattern", "names"),
    [  # as Hadoop's globs match them
        ("{a,b}.csv", "a.csv b.csv"),
        ("{a,z}.csv", "a.csv"),
        ("{a}.csv", "a.csv"),
        ("{a,{b,q}}.csv", "a.csv b.csv"),
        ("{a,b}.{csv,txt}", "a.csv b.csv"),
        ("{.,sub}/*.csv", "./a.csv ./b.csv ./x*y.csv ./{c}.csv sub/d.csv"),
        ("{sub/d,a}.csv", "a.csv sub/d.csv"),
        ("\\{c\\}.csv", "{c}.csv"),
        ("x\\*y.csv", "x*y.csv"),
        ("{x\\*y,a}.csv", "a.csv x*y.csv"),
        ("[ab].csv", "a.csv b.csv"),
        ("[^a].csv", "b.csv"),
        ("[{a}].csv", "a.csv"),
        ("{a,b.csv", ""),
        ("a,b}.csv", ""),
    ],
)
def test_globs_match_as_hadoops_do(tmp_path: Path, pattern: str, names: str) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("a.csv", "b.csv", "x*y.csv", "{c}.csv", "sub/d.csv"):
        (tmp_path / name).touch()
    found = [match.removeprefix(f"{tmp_path}/") for match in matches_of(f"{tmp_path}/{pattern}")]
    assert found == names.split()
    assert is_pattern(pattern) or not names or pattern.startswith("a,b")


def test_only_regular_files_are_found_and_the_rest_is_named(tmp_path: Path) -> None:
    folder, other = tmp_path / "in", tmp_path / "other"
    (folder / "b.csv").mkdir(parents=True)
    other.mkdir()
    for name in ("a.csv", "b.csv/c.csv", ".hidden", "../other/d.csv"):
        (folder / name).touch()
    os.mkfifo(folder / "fifo.csv")
    (folder / "gone.csv").symlink_to("/nowhere/x.csv")
    (folder / "itself").symlink_to("itself")
    (folder / "up").symlink_to("..")
    (folder / "k=2").symlink_to(other)
    (folder / "linked.csv").symlink_to("a.csv")
    (folder / "null").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(folder / "s"))
        files, skipped = files_below(str(folder))
    above = "up/in is a link to a folder that contains it"
    assert [os.path.relpath(file, folder) for file in files] == [
        *("a.csv", "b.csv/c.csv", "k=2/d.csv", "linked.csv", "up/other/d.csv")
    ]
    assert [text.removeprefix(f"{folder}/") for text in skipped] == [
        "fifo.csv is a named pipe (FIFO)",
        "gone.csv is a link to '/nowhere/x.csv', which does not exist",
        "itself is a link that leads back to itself",
        "null is a character device",
        "s is a socket",
        above,
    ]
    with pytest.raises(FileNotFoundError):
        files_below(str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError):
        not_readable(str(tmp_path / "nowhere"))


def test_a_name_that_is_not_utf_8_can_be_shown() -> None:
    assert printable(os.fsdecode(b"caf\xe9.txt")) == "caf\\xe9.txt"
    assert printable("café.txt") == "café.txt"
