"""Programs that are uploaded to the REST server, and their runs."""

from __future__ import annotations

import os
import textwrap
import time
import zipfile
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path

import pytest

from dispatcher.rest import programs
from dispatcher.rest.programs import KEPT_S, MAX_UPLOADS, Programs, ProgramStore, UploadedProgram
from dispatcher.rest.requests import Refusal
from firesteel.client.submitted_program import PlannedVertex
from firesteel.common.config import Configuration

NOWHERE = "127.0.0.1:1"
TOKEN = "the-callers-token"


async def pieces(content: bytes, size: int = 10) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


def zipped(**members: str) -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in members.items():
            archive.writestr(f"{name}.py", text)
    return buffer.getvalue()


@pytest.fixture
def store(tmp_path: Path) -> ProgramStore:
    return ProgramStore(tmp_path / "uploads", limit_bytes=10_000)


def submission(directory: Path, **conf: str) -> Programs:
    keys = {name.replace("__", "."): value for name, value in conf.items()}
    return Programs(directory, Configuration(keys))


async def uploaded(submission: Programs, text: str, name: str = "job.py") -> UploadedProgram:
    return await submission.store.add(name, pieces(textwrap.dedent(text).encode(), 1000))


async def test_a_program_is_kept_under_an_id_and_its_name_is_data(store: ProgramStore) -> None:
    names = ["../../etc/cron.d/evil.py", "/etc/passwd", "..\\evil.py", "<script>.py", "job\0.py"]
    for name in names:
        await store.add(name, pieces(b"x = 1"))
    assert {program.name for program in store.list()} == set(names)
    for program in store.list():
        assert program.path.read_bytes() == b"x = 1"
        assert program.path.parent.parent == store._directory
        assert program.path.parent.stat().st_mode & 0o077 == 0
    outside = [path for path in store._directory.parent.iterdir() if path != store._directory]
    assert outside == []


@pytest.mark.parametrize("program_id", ["..", ".", "", "../uploads", "/etc", "0" * 32])
async def test_ids_are_looked_up(store: ProgramStore, program_id: str) -> None:
    await store.add("job.py", pieces(b"x = 1"))
    with pytest.raises(Refusal, match="no uploaded program"):
        store.find(program_id)
    with pytest.raises(Refusal, match="no uploaded program"):
        store.delete(program_id)
    assert len(store.list()) == 1


async def test_what_is_too_large_or_not_a_program_leaves_nothing(store: ProgramStore) -> None:
    for content, status, words in (
        (b"#" * 10_001, 413, "10,000 bytes"),
        (b"x = (", 400, "neither a Python program nor a package"),
        (b"\xca\xfe\xba\xbe", 400, "neither a Python program nor a package"),
        (zipped(one="", two="")[:-30], 400, "neither"),
    ):
        with pytest.raises(Refusal, match=words) as refused:
            await store.add("job.py", pieces(content, 1000))
        assert refused.value.status == status
    assert list(store._directory.iterdir()) == []


async def test_programs_are_limited_in_number_and_age(tmp_path: Path) -> None:
    now_s = time.time()
    store = ProgramStore(tmp_path, 1000, now_s=lambda: now_s)
    for _ in range(MAX_UPLOADS):
        await store.add("job.py", pieces(b"x = 1"))
    with pytest.raises(Refusal, match="delete one first"):
        await store.add("job.py", pieces(b"x = 1"))
    now_s += KEPT_S + 60
    store.used(store.list()[0])
    await store.add("new.py", pieces(b"x = 1"))
    assert [program.name for program in store.list()] == ["new.py", "job.py"]


async def test_the_entries_of_a_package_are_known(store: ProgramStore) -> None:
    package = await store.add("a.zip", pieces(zipped(__main__="", other=""), 1000))
    assert package.entries == ("__main__.py", "other.py")


async def test_a_plan_is_made_without_a_cluster(tmp_path: Path) -> None:
    submitted = submission(tmp_path)
    program = await uploaded(
        submitted,
        """
        import os, sys
        from firesteel import Environment
        print("the output")
        env = Environment()
        env.from_sequence(0, 10).rebalance().map_in_arrow(lambda it: it).print()
        env.execute(" ".join(sys.argv[1:]) + os.environ["FIRESTEEL_TOKEN"])
        """,
    )
    run = await submitted.run(
        program,
        address=NOWHERE,
        token=TOKEN,
        arguments=("two", "words"),
        overrides={"parallelism.default": "3"},
        plan_only=True,
    )
    assert run.outcome.name == f"two words{TOKEN}"
    assert run.output == "the output"
    source, rest = run.outcome.vertices
    assert source == PlannedVertex(
        vertex_id=source.vertex_id, name=source.name, parallelism=3, inputs=()
    )
    assert rest.inputs == ((source.vertex_id, "REBALANCE"),)
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(left) == ["output.log", "program", "upload.json"]


async def test_a_failing_program_is_answered_with_the_users_lines(tmp_path: Path) -> None:
    submitted = submission(tmp_path)
    program = await uploaded(
        submitted, "print('before')\ndef inner():\n    return 1 / 0\ninner()\n", "ratio.py"
    )
    with pytest.raises(Refusal) as refused:
        await submitted.run(program, address=NOWHERE, token=TOKEN)
    assert refused.value.status == 400
    message = str(refused.value)
    assert "line 3, in inner" in message
    assert "ZeroDivisionError" in message
    assert "runpy" not in message
    assert message.endswith("The end of the output of ratio.py:\nbefore")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Replaces the module that runs programs with a script."""

    def run(script: str) -> None:
        (tmp_path / "bare_program.py").write_text(
            "import sys\nfrom firesteel.common.process import announce_ready\n"
            "from firesteel.client.submitted_program import *\n"
            "announce_ready()\n" + textwrap.dedent(script)
        )
        monkeypatch.setattr(programs, "_MODULE", "bare_program")
        paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))

    return run


async def test_a_program_that_takes_too_long_is_killed_and_its_jobs_run_on(
    tmp_path: Path, bare
) -> None:
    bare(
        """
        import time
        ProgramOutcome(job_ids=("1" * 32,)).write(Path(sys.argv[1]))
        time.sleep(600)
        """
    )
    submitted = submission(tmp_path, web__submit__timeout="1 s")
    program = await uploaded(submitted, "x = 1")
    with pytest.raises(Refusal) as refused:
        await submitted.run(program, address=NOWHERE, token="")
    assert "did not end within 1 s" in str(refused.value)
    assert f"which run on: {'1' * 32}" in str(refused.value)


async def test_a_program_whose_process_dies_is_reported(tmp_path: Path, bare) -> None:
    bare("os.abort()")
    submitted = submission(tmp_path)
    program = await uploaded(submitted, "x = 1")
    with pytest.raises(Refusal, match="SIGABRT"):
        await submitted.run(program, address=NOWHERE, token="")


async def test_a_program_gets_the_callers_token_and_no_secrets(tmp_path: Path, bare) -> None:
    bare(
        """
        print(sys.argv, ProgramRequest.read(Path(sys.argv[1])), dict(os.environ))
        ProgramOutcome(job_ids=("1" * 32,)).write(Path(sys.argv[1]))
        """
    )
    secret = "postgresql://me:a-secret-password@db/x"
    submitted = submission(tmp_path, database__url=secret)
    conf = Configuration({"database.url": secret})
    os.environ.update(conf.to_environment())
    try:
        program = await uploaded(submitted, "x = 1")
        run = await submitted.run(program, address=NOWHERE, token=TOKEN)
    finally:
        for name in conf.to_environment():
            os.environ.pop(name, None)
    assert "a-secret-password" not in run.output
    assert f"'FIRESTEEL_TOKEN': '{TOKEN}'" in run.output
    assert run.output.count(TOKEN) == 1


async def test_bad_requests_run_nothing(tmp_path: Path) -> None:
    submitted = submission(tmp_path)
    program = await uploaded(submitted, "x = 1")
    bad = (
        ({"job_id": "nonsense"}, "not the id of a job"),
        ({"overrides": {"parallelism.default": "many"}}, "parallelism.default"),
        ({"entry": "Other"}, "is one module"),
    )
    for fields, words in bad:
        with pytest.raises(Refusal, match=words):
            await submitted.run(program, address=NOWHERE, token="", **fields)
    assert not (tmp_path / "programs" / "runs").exists()
    disabled = submission(tmp_path, web__submit__enable="false")
    with pytest.raises(Refusal, match="firesteel run") as refused:
        await disabled.run(program, address=NOWHERE, token="")
    assert refused.value.status == 403
