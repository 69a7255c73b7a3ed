"""The options -t and -D, which name a cluster on Kubernetes."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from firesteel.client.cli import main
from firesteel.client.cli.arguments import address_option
from firesteel.client.cli.targets import cluster_of
from firesteel.common.config import Configuration
from firesteel.errors import FiresteelError
from tests.kubernetes.access import kubeconfig

CLUSTER = ("-D", "kubernetes.cluster-id=orders")


@pytest.fixture(autouse=True)
def access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kubeconfig"
    (tmp_path / "ca.crt").touch()
    file.write_text(kubeconfig("https://127.0.0.1:1", tmp_path / "ca.crt", "token", "data"))
    monkeypatch.setenv("KUBECONFIG", str(file))


@click.command()
@address_option(otherwise="none")
def verb(address: str | None) -> None:
    click.echo(address)


@pytest.mark.parametrize("target", ["kubernetes-session", "kubernetes-application"])
def test_a_target_and_an_id_are_an_address(target: str) -> None:
    shown = CliRunner().invoke(verb, ["-t", target, *CLUSTER])
    assert shown.output.strip() == "kubernetes://data/orders"
    elsewhere = ("-D", "kubernetes.namespace=other")
    shown = CliRunner().invoke(verb, ["-t", target, *CLUSTER, *elsewhere])
    assert shown.output.strip() == "kubernetes://other/orders"


def test_a_target_needs_an_id() -> None:
    shown = CliRunner().invoke(main, ["list", "-t", "kubernetes-session"])
    assert shown.exit_code == 1 and "kubernetes.cluster-id is not set" in shown.output


def test_a_target_and_an_address_are_one_too_many() -> None:
    shown = CliRunner().invoke(verb, ["-t", "kubernetes-session", *CLUSTER, "-m", "here:6123"])
    assert shown.exit_code == 2 and "-m and -t each name a cluster" in shown.output
    conf = Configuration({"kubernetes.cluster-id": "orders"})
    with pytest.raises(FiresteelError, match="-t kubernetes-session and -m each name a cluster"):
        cluster_of("kubernetes-session", "here:6123", conf)


def test_a_program_of_an_image_runs_in_an_application_cluster_only() -> None:
    ran = CliRunner().invoke(main, ["run", "-t", "local", "local:///opt/job.py"])
    assert ran.exit_code == 1
    assert "local:///opt/job.py is a file of the image" in ran.output
    assert "-t kubernetes-application" in ran.output


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ("start", "-t", "kubernetes-application"),
            "use `firesteel run -t kubernetes-application`",
        ),
        (("start", "-t", "kubernetes-session", "--dir", "x"), "--dir applies to a cluster on this"),
        (("stop", "-t", "kubernetes-session", "--dir", "x"), "--dir applies to a cluster on this"),
    ],
)
def test_options_that_exclude_each_other_are_refused(
    arguments: tuple[str, ...], problem: str
) -> None:
    ran = CliRunner().invoke(main, ["cluster", *arguments, *CLUSTER])
    assert ran.exit_code == 1 and problem in ran.output
