from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import xxhash

from firesteel.common.job_graph import Blob, BlobKind
from firesteel.common.leader import FixedLeaders
from firesteel.common.service.platform import SYSTEM
from firesteel.errors import FiresteelError
from taskexecutor.core import commands, events
from taskexecutor.executor.cleaning import check_modules, forget_folders, forget_modules
from taskexecutor.job_files import JobFiles, lay_files, unpack


def blob(name: str, kind: BlobKind = BlobKind.FILE, target_dir: str = "") -> Blob:
    return Blob(hash="0" * 32, name=name, kind=kind, size_bytes=1, target_dir=target_dir)


def zip_of(path: Path, **members: str) -> Path:
    with zipfile.ZipFile(path, "w") as opened:
        for name, content in members.items():
            opened.writestr(name.replace("__", "/"), content)
    return path


def tar_of(path: Path, member: str, content: bytes = b"x") -> Path:
    with tarfile.open(path, "w:gz") as opened:
        info = tarfile.TarInfo(member)
        info.size = len(content)
        opened.addfile(info, io.BytesIO(content))
    return path


def test_python_files_are_imported_from_their_folder_and_zips_directly(tmp_path):
    source = tmp_path / "source"
    source.write_text("x = 1")
    paths = lay_files(
        tmp_path / "job",
        [(blob("one.py"), source), (blob("two.py"), source), (blob("lib.zip"), source)],
    )
    files = tmp_path / "job" / "files"
    assert paths == (str(files), str(files / "lib.zip"))
    assert (files / "one.py").read_text() == "x = 1"


def test_two_files_of_the_same_name_are_refused(tmp_path):
    source = tmp_path / "source"
    source.write_text("x = 1")
    with pytest.raises(FiresteelError, match=r"two different Python files are named 'one.py'"):
        lay_files(tmp_path / "job", [(blob("one.py"), source), (blob("one.py"), source)])


@pytest.mark.parametrize("name", ["../evil.py", "/etc/passwd", "a/../../b.py", "", "a\\..\\b"])
def test_names_that_lead_outside_are_refused(tmp_path, name):
    source = tmp_path / "source"
    source.write_text("x = 1")
    with pytest.raises(FiresteelError, match="refused"):
        lay_files(tmp_path / "job", [(blob(name), source)])


def test_archives_are_unpacked_into_their_target(tmp_path):
    archive = zip_of(tmp_path / "a", pkg____init__="", data="7")
    paths = lay_files(tmp_path / "job", [(blob("a.zip", BlobKind.ARCHIVE, "things"), archive)])
    assert (tmp_path / "job" / "things" / "data").read_text() == "7"
    assert paths == (str(tmp_path / "job"), str(tmp_path / "job" / "things"))


def test_the_programs_modules_are_unpacked_behind_files(tmp_path):
    archive = zip_of(tmp_path / "a", helper="")
    lib = tmp_path / "lib.py"
    lib.write_text("")
    given = [(blob("lib.py"), lib), (blob("modules.zip", BlobKind.MODULES), archive)]
    paths = lay_files(tmp_path / "job", given)
    modules = tmp_path / "job" / "program-modules"
    assert paths == (str(tmp_path / "job" / "files"), str(modules))
    assert (modules / "helper").exists()
    with pytest.raises(FiresteelError, match="cannot be unpacked into 'program-modules'"):
        lay_files(tmp_path / "other", [(blob("a", BlobKind.ARCHIVE, "program-modules"), archive)])


def test_a_module_that_the_process_has_loaded_otherwise_is_named(tmp_path, monkeypatch):
    (tmp_path / "program_of_this_job.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    check_modules(tmp_path)
    import program_of_this_job  # type: ignore[import-not-found]  # noqa: F401

    check_modules(tmp_path)
    forget_modules([str(tmp_path)])
    (tmp_path / "json").mkdir()
    with pytest.raises(
        FiresteelError, match=r"module 'json' has the same name as .*/json/__init__.py"
    ):
        check_modules(tmp_path)


def test_tar_archives_work_too(tmp_path):
    unpack(tar_of(tmp_path / "a", "deep/data"), tmp_path / "t", "a.tar.gz")
    assert (tmp_path / "t" / "deep" / "data").exists()


def test_archives_that_would_write_outside_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "z", "w") as opened:
        opened.writestr("../evil", "x")
    with pytest.raises(FiresteelError, match="refused"):
        unpack(tmp_path / "z", tmp_path / "in" / "target", "z.zip")
    with pytest.raises(FiresteelError, match="refused"):
        unpack(tar_of(tmp_path / "t", "../evil"), tmp_path / "in" / "target", "t.tar.gz")
    assert not list((tmp_path / "in").glob("evil"))


def test_links_that_lead_outside_are_refused(tmp_path):
    with tarfile.open(tmp_path / "t", "w:gz") as opened:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc"
        opened.addfile(info)
    with pytest.raises(FiresteelError, match="refused"):
        unpack(tmp_path / "t", tmp_path / "target", "t.tar.gz")


def test_what_is_no_archive_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"garbage")
    with pytest.raises(FiresteelError, match="neither a zip nor a tar"):
        unpack(tmp_path / "x", tmp_path / "target", "x.zip")


async def _prepared(tmp_path: Path, *blobs: Blob) -> events.Event:
    posted: list[events.Event] = []
    files = JobFiles(
        tmp_path,
        leaders=FixedLeaders(),
        python=sys.executable,
        post=posted.append,
        platform=SYSTEM,
    )
    files.start()
    files.prepare(commands.PrepareJobFiles(job_id="a" * 32, blobs=blobs, dispatcher_address=""))  # type: ignore[arg-type]
    await files._preparing["a" * 32]  # type: ignore[index]
    return posted[0]


async def test_files_in_the_cache_need_no_dispatcher(tmp_path):
    content = b"x = 1"
    known = Blob(
        hash=xxhash.xxh3_128_hexdigest(content), name="lib.py", kind=BlobKind.FILE, size_bytes=5
    )
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / known.hash).write_bytes(content)
    ready = await _prepared(tmp_path, known)
    assert isinstance(ready, events.JobFilesReady)
    assert ready.python_paths == (str(tmp_path / "jobs" / ("a" * 32) / "files"),)


async def test_a_file_that_cannot_be_had_is_named(tmp_path):
    failed = await _prepared(tmp_path, blob("lib.py"))
    assert isinstance(failed, events.JobFilesFailed)
    assert "file 'lib.py' cannot be downloaded" in failed.reason


async def test_requirements_that_cannot_be_installed_say_what_pip_says(tmp_path):
    content = b"./no-such-package-here\n"
    known = Blob(
        hash=xxhash.xxh3_128_hexdigest(content),
        name="r.txt",
        kind=BlobKind.REQUIREMENTS,
        size_bytes=len(content),
    )
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / known.hash).write_bytes(content)
    failed = await _prepared(tmp_path, known)
    assert isinstance(failed, events.JobFilesFailed)
    assert "the requirements in r.txt cannot be installed: ERROR:" in failed.reason
    assert list((tmp_path / "requirements").iterdir()) == []
    assert list((tmp_path / "jobs").iterdir()) == []


def test_only_the_jobs_modules_are_forgotten(tmp_path, monkeypatch):
    (tmp_path / "mine_of_this_job.py").write_text("x = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    import mine_of_this_job  # type: ignore[import-not-found]  # noqa: F401

    assert forget_modules([str(tmp_path)]) == ["mine_of_this_job"]
    assert "json" in sys.modules
    assert "mine_of_this_job" not in sys.modules


def test_folders_are_forgotten_while_other_threads_import(tmp_path, monkeypatch):
    class Folder(str):
        def startswith(self, prefixes):
            sys.path_importer_cache[f"{self}/of another thread"] = None
            return super().startswith(prefixes)

    known = {Folder(tmp_path): None, "/elsewhere": None}
    monkeypatch.setattr(sys, "path_importer_cache", known)
    forget_folders((str(tmp_path),))
    assert list(known) == ["/elsewhere", f"{tmp_path}/of another thread"]
