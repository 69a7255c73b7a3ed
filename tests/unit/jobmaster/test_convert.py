"""What the JobMaster tells its peers about a job's configuration."""

from __future__ import annotations

from jobmaster import commands, convert


def test_only_what_a_process_must_be_started_with_is_its_environment() -> None:
    config = {
        "spark.driver.extraJavaOptions": "-Dx=y",
        "spark.sql.shuffle.partitions": "7",
        "spark.sql.extensions": "org.example.Extensions",
        "python.executable": "/opt/python",
        "parallelism.default": "2",
    }
    declared = convert.declaration(commands.DeclareRequirements(sequence=3, requirements=()), convert.environment(config))
    assert declared.sequence == 3
    assert dict(declared.environment) == {
        "spark.driver.extraJavaOptions": "-Dx=y",
        "spark.sql.extensions": "org.example.Extensions",
        "python.executable": "/opt/python",
    }
