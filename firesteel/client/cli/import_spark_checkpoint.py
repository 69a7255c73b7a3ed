"""import-spark-checkpoint: continues a query of Spark's own engine on Firesteel."""

from __future__ import annotations

from pathlib import Path

import click

from firesteel.common.units import counted

_folder = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command(
    "import-spark-checkpoint",
    epilog="\b\nExamples:\n"
    "  firesteel import-spark-checkpoint checkpoints/clicks checkpoints/clicks-firesteel\n"
    "  firesteel import-spark-checkpoint --output out/clicks checkpoints/clicks checkpoints/new",
)
@click.option(
    "--output",
    type=_folder,
    metavar="FOLDER",
    help="The folder that the query on Spark has written with a file sink, and to which the query"
    " on Firesteel adds files: its files that are not part of a complete batch are removed, and its"
    " _spark_metadata, without which Spark reads all files, is renamed.",
)
@click.argument("spark_checkpoint", metavar="SPARK_CHECKPOINT", type=_folder)
@click.argument("new_location", metavar="NEW_LOCATION")
def import_spark_checkpoint(spark_checkpoint: Path, new_location: str, output: Path | None) -> None:
    """Lets a query continue on Firesteel where it has stopped on Spark.

    SPARK_CHECKPOINT is the checkpointLocation of the query on Spark, which must have ended.
    NEW_LOCATION is that of the same query on Firesteel: its files that were read are skipped, and
    it reads Kafka from the offsets that Spark has reached. The position is that of the last
    complete batch. A batch that was planned and is not complete is repeated, as Spark would do.

    Queries with state, such as aggregates, are refused: only Spark reads its state.
    """
    from firesteel.client.spark_programs.imports import (
        incomplete_files,
        release_output,
        write_location,
    )
    from firesteel.client.spark_programs.spark_checkpoint import read_spark_checkpoint

    checkpoint = read_spark_checkpoint(spark_checkpoint)
    incomplete = [] if output is None else incomplete_files(output, checkpoint.batch)
    write_location(checkpoint, new_location)
    if output is not None:
        release_output(output, incomplete)
        click.echo(f"{output}: {counted(len(incomplete), 'incomplete file')} removed")
    click.echo(f"Batch {checkpoint.batch} of query {checkpoint.query_id} is the last complete one:")
    for index, position in enumerate(checkpoint.sources):
        click.echo(f"  source {index}: {position.shown or 'at its start'}")
    if checkpoint.planned is not None:
        click.echo(f"Batch {checkpoint.planned} was planned and is not complete: it is repeated.")
    click.echo(f"Start the query with the checkpointLocation {new_location}")
