"""package: writes a program and its files into one file."""

from __future__ import annotations

from pathlib import Path

import click

from firesteel.client.cli.arguments import listed, python_files_options
from firesteel.common.units import counted


@click.command(
    epilog="\b\nExamples:\n"
    "  firesteel package job.py                          writes job.zip\n"
    "  firesteel package job.py --files data -o daily.zip\n"
    "  firesteel package job.py --py-requirements requirements.txt\n"
    "  firesteel run daily.zip --input data.csv\n"
    "\b\nWith the REST API, for which TOKEN is that of a submitter:\n"
    '  curl -H "Authorization: Bearer $TOKEN" -F jarfile=@daily.zip http://HOST:8081/jars/upload\n'
    '  curl -H "Authorization: Bearer $TOKEN" -X POST http://HOST:8081/jars/ID/run'
)
@click.argument(
    "job_file", metavar="job.py", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write. [default: the program's name with .zip, in the current directory]",
)
@click.option(
    "--files",
    metavar="FILES",
    help="Comma-separated files and folders below the program's folder, which the program reads"
    " while it builds its pipeline: Path(__file__).parent / 'data/rates.csv'.",
)
@python_files_options
def package(
    job_file: Path,
    output: Path | None,
    files: str | None,
    py_files: str | None,
    py_archives: str | None,
    py_requirements: str | None,
) -> None:
    """Writes a program and its files into one zip file, for `firesteel run` and for the REST API
    and its forms, which accept one file.

    It contains the program, and the local modules that the program and these modules import, with
    the data files of packages. Modules whose names are computed at run time are not seen: name them
    with --py-files. The other options add files. Installed packages are not included: list them in
    a requirements file, unless the cluster has them.

    The program is not run.
    """
    from firesteel.client.cli.program import check_syntax
    from firesteel.client.package import write_package

    check_syntax(job_file)
    target = output or Path(job_file.with_suffix(".zip").name)
    names = write_package(
        job_file,
        target,
        data=[Path(name) for name in listed(files or "")],
        files=listed(py_files or ""),
        archives=listed(py_archives or ""),
        requirements=py_requirements,
    )
    for name in names:
        click.echo(f"  {name}")
    click.echo(f"{target}: {counted(len(names), 'file')}, {target.stat().st_size:,} bytes")
