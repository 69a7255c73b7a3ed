"""The connectors of Spark and Flink for Kafka, from Maven Central; downloaded on demand."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from benchmarks.peers.environment import ROOT, NotInstalled, run
from firesteel.common.process.java import java_home

BUILD = ROOT / "build" / "bench-kafka"
_POM = Path(__file__).with_name("pom.xml")
# The others are part of Spark or Flink.
_SPARK = (
    "spark-sql-kafka-0-10_2.13",
    "spark-token-provider-kafka-0-10_2.13",
    "kafka-clients",
    "commons-pool2",
)
_FLINK = ("flink-sql-connector-kafka",)


def jars() -> Path:
    """Returns the folder of the jars. Raises NotInstalled."""
    place = BUILD / f"jars-{hashlib.sha256(_POM.read_bytes()).hexdigest()[:16]}"
    if not place.exists():
        _download(place)
    return place


def spark_jars(folder: Path) -> list[str]:
    return [str(path) for name in _SPARK for path in folder.glob(f"{name}-*.jar")]


def flink_jars(folder: Path) -> list[str]:
    return [str(path) for name in _FLINK for path in folder.glob(f"{name}-*.jar")]


def _download(place: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise NotInstalled("Maven is missing; on Debian: apt-get install maven")
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix="jars-") as temporary:
        complete = Path(temporary) / "complete"
        run(
            [
                *("env", f"JAVA_HOME={java_home()}"),
                *(maven, "--quiet", "--batch-mode", "--strict-checksums", "--file", str(_POM)),
                *("dependency:copy-dependencies", "-DincludeScope=runtime"),
                f"-DincludeArtifactIds={','.join((*_SPARK, *_FLINK))}",
                f"-DoutputDirectory={complete}",
            ]
        )
        complete.rename(place)
