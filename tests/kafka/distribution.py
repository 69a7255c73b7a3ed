"""Installs Apache Kafka from Maven Central, once for each version and machine:
`python -m tests.kafka.distribution`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from firesteel.client.cluster.supervisor import reserved_port
from firesteel.common.process.child import log_tail
from firesteel.common.process.java import java_home
from tests.waiting import eventually

_POM = Path(__file__).with_name("pom.xml")
_PINNED = Path(__file__).with_name("jars.sha256")
_INSTALL_TIMEOUT_S = 600
_HOST = "127.0.0.1"
_SETTINGS = "first.properties"
_ARCHIVE = "classes.jsa"
_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
STARTED = "Kafka Server started"  # in the log of a broker
_ADVICE = "install Maven (on Debian: apt-get install maven), then run: make setup"


class NotInstalled(Exception):
    """Apache Kafka could not be installed."""


def installed() -> Path:
    """Returns the folder of Apache Kafka, installing it if need be: its jars in `jars`, in
    `formatted` the folder of a broker's data before its first start, and an archive of its classes,
    with which it starts in half the CPU time. Raises NotInstalled.
    """
    place = _folder()
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=f"{place.name}-") as temporary:
            complete = Path(temporary) / "complete"
            _download(complete / "jars")
            _check(complete / "jars")
            _format(complete)
            _archive(complete)
            try:
                complete.rename(place)
            except OSError:  # another process was faster
                if not place.exists():
                    raise
    return place


def java(place: Path, *options: str) -> list[str]:
    """Returns the start of a command for Kafka's classes, which runs in the folder `place`: the
    archive of classes belongs to these relative paths.
    """
    jars = sorted(f"jars/{path.name}" for path in (place / "jars").iterdir())
    archive = [f"-XX:SharedArchiveFile={_ARCHIVE}"] if (place / _ARCHIVE).exists() else []
    return [f"{java_home()}/bin/java", *archive, *options, "-cp", os.pathsep.join(jars)]


def _folder() -> Path:
    pom, pinned = _POM.read_bytes(), _PINNED.read_bytes()
    match = re.search(rb"<artifactId>kafka_2.13</artifactId>\s*<version>([^<]+)<", pom)
    assert match is not None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = hashlib.sha256(pom + pinned + Path(__file__).read_bytes()).hexdigest()[:16]
    return cache / "firesteel" / f"kafka-{match[1].decode()}-{key}"


def _download(jars: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NotInstalled(f"there is no `mvn` to download Apache Kafka with; {_ADVICE}")
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
    run = subprocess.run(
        [maven, "--quiet", "--batch-mode", "--strict-checksums", "--file", str(_POM), *goal],
        # The options of the tests' own JVMs are not for it.
        env={**os.environ, "JAVA_HOME": java_home(), "JDK_JAVA_OPTIONS": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_INSTALL_TIMEOUT_S,
        check=False,
    )
    if run.returncode != 0:
        raise NotInstalled(f"Maven could not download Apache Kafka:\n{run.stdout[-2000:]}")


def _check(jars: Path) -> None:
    lines = _PINNED.read_text().splitlines()
    pinned = {name: digest for digest, name in (line.split() for line in lines)}
    found = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in jars.iterdir()}
    different = sorted(name for name in {*pinned, *found} if pinned.get(name) != found.get(name))
    if different:
        raise NotInstalled(
            f"Maven's files differ from those in {_PINNED.name}: {', '.join(different)}; after a"
            f" change of {_POM.name}, write their SHA-256 digests there"
        )


def _format(place: Path) -> None:
    """Formats a folder with Kafka's own tool, which takes more than a second of CPU time. A copy of
    the folder serves any broker: only `meta.properties` names one.
    """
    (held, port), (held_too, controller) = reserved_port(_HOST), reserved_port(_HOST)
    (place / _SETTINGS).write_text(
        "process.roles=broker,controller\n"
        "node.id=1\n"
        f"controller.quorum.voters=1@{_HOST}:{controller}\n"
        "controller.listener.names=CONTROLLER\n"
        f"listeners=PLAINTEXT://{_HOST}:{port},CONTROLLER://{_HOST}:{controller}\n"
        "log.dirs=formatted\n"
    )
    tool = ["kafka.tools.StorageTool", "format", "--cluster-id", "AAAAAAAAAAAAAAAAAAAAAQ"]
    subprocess.run(
        [*java(place, *_QUICK), *tool, "--config", _SETTINGS],
        cwd=place,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_INSTALL_TIMEOUT_S,
        check=True,
    )
    held.close()
    held_too.close()


def _archive(place: Path) -> None:
    """Starts a broker once, which archives its classes as it stops."""
    shutil.copytree(place / "formatted", place / "untouched")
    options = (*_QUICK, f"-XX:ArchiveClassesAtExit={_ARCHIVE}")
    with open(place / "log", "w+b") as output:
        broker = subprocess.Popen(
            [*java(place, *options), "kafka.Kafka", _SETTINGS],
            cwd=place,
            stdout=output,
            stderr=output,
        )
        try:
            eventually(
                lambda: broker.poll() is not None or STARTED in (place / "log").read_text(),
                "the first broker serves",
                patience_s=_INSTALL_TIMEOUT_S,
            )
            broker.terminate()
            broker.wait(_INSTALL_TIMEOUT_S)
        finally:
            broker.kill()
            broker.wait()
    if not (place / _ARCHIVE).exists():
        raise NotInstalled(f"Apache Kafka did not start:\n{log_tail(place / 'log')}")
    shutil.rmtree(place / "formatted")
    (place / "untouched").rename(place / "formatted")
    (place / "formatted" / "meta.properties").unlink()


if __name__ == "__main__":
    try:
        installed()
    except NotInstalled as error:
        print(error, file=sys.stderr)
        raise SystemExit(1) from None
