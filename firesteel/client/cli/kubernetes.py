"""Clusters on Kubernetes: `cluster start|status|stop` and `run` with `-t kubernetes-...`."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from firesteel.client.kubernetes_cluster import KubernetesCluster
from firesteel.client.signals import INTERRUPTED
from firesteel.common.config import Configuration, options
from firesteel.errors import FiresteelError, JobCanceled, JobNotFound
from firesteel.kubernetes.cluster import Application
from firesteel.kubernetes.cluster.deployed import NoKubernetesCluster, earlier_job

if TYPE_CHECKING:
    from firesteel.client.job_details import ClusterOverview

SLOTS_TIMEOUT_S = 300.0
POLL_S = 0.5


def say(text: str) -> None:
    click.echo(text, err=True)


def start_session(conf: Configuration, *, task_executors: int, wait: bool) -> None:
    """Starts a session cluster. If its masters do not serve, nothing of it is left."""
    cluster = KubernetesCluster(conf)
    started_at = time.monotonic()
    with _started(cluster, None, task_executors), cluster.client() as client:
        url = client.dashboard_url()
        slots = task_executors * conf.get(options.TASK_SLOTS)
        while wait and slots and (warm := client.cluster_overview().slots_warm) < slots:
            if time.monotonic() - started_at > SLOTS_TIMEOUT_S:
                say(f"{warm} of {slots} slots are warm; `firesteel cluster status` shows why.")
                break
            time.sleep(POLL_S)
    click.echo(f"Cluster started: {cluster}, after {time.monotonic() - started_at:.1f} s.")
    target = cluster.options("kubernetes-session")
    click.echo(
        "\nNext:\n"
        f"  firesteel run {target} job.py\n"
        f"  firesteel list {target}\n"
        + (f"  firesteel dashboard {target}\n" if url else "")
        + f"  {cluster.stop_command}"
    )


def show_status(conf: Configuration) -> None:
    from firesteel.client import render
    from firesteel.client.client import Client

    cluster = KubernetesCluster(conf)
    deployment, pods = cluster.state()
    console = render.console()
    console.print(f"Cluster {cluster}, since {deployment['metadata'].get('creationTimestamp')}")
    for part in render.pods(deployment, pods):
        console.print(part)
    with Client(cluster.address, conf=cluster.conf) as client:
        overview = client.cluster_overview()
    for part in (*_masters(overview), *render.overview_of(overview)):
        console.print(part)


def _masters(overview: ClusterOverview) -> Iterator[str]:
    for master in overview.masters:
        if master.leads:
            holder = master.office.title().replace("_", "")
            job = f" of {master.job_name}" if master.job_name else ""
            yield f"{holder}{job} leads at {master.address}, epoch {master.epoch}"


def update_cluster(conf: Configuration, *, unset: Collection[str], dry_run: bool) -> None:
    from firesteel.client.kubernetes_update import ClusterUpdate

    cluster = KubernetesCluster(conf)
    started_at = time.monotonic()
    update = ClusterUpdate(cluster, say, unset)
    if not update.needed:
        click.echo(f"Nothing to update: {cluster} has this configuration.")
        return
    click.echo(f"Changes of the cluster {cluster}:")
    for change in update.changes:
        click.echo(f"  {change}")
    if dry_run:
        return
    try:
        update.apply()
    except KeyboardInterrupt:
        say(
            f"Interrupted: the update of the cluster {cluster} continues. Repeat it to wait for it."
        )
        sys.exit(INTERRUPTED)
    click.echo(f"Cluster updated: {cluster}, after {time.monotonic() - started_at:.1f} s.")


def stop_cluster(conf: Configuration) -> None:
    cluster = KubernetesCluster(conf)
    cluster.delete(say)
    click.echo(f"Cluster stopped: {cluster}.")


# ------------------------------------------------------------ application clusters


@contextmanager
def application_cluster(
    conf: Configuration, application: Application, *, detached: bool
) -> Iterator[KubernetesCluster]:
    """Starts a cluster for one job. Deletes it when the program ends, unless its job still runs."""
    cluster = KubernetesCluster(conf)
    with _started(cluster, application, 0):
        _check_job(cluster)
    try:
        yield cluster
    finally:
        _end(cluster, detached=detached)


def _check_job(cluster: KubernetesCluster) -> None:
    """Raises FiresteelError if the job has ended in an earlier cluster."""
    with cluster.client() as client:
        try:
            job = client.job_details(cluster.job_id)
        except JobNotFound:
            return
    status, (deployment, _) = job.status.name, cluster.state()
    if error := earlier_job(cluster.cluster_id, deployment, status=status, end_ms=job.end_ms):
        raise FiresteelError(error)


@contextmanager
def _started(
    cluster: KubernetesCluster, application: Application | None, task_executors: int
) -> Iterator[None]:
    """Creates the cluster and waits for its masters. Deletes it if they do not serve, or if the
    block fails; Ctrl-C leaves it.
    """
    try:
        cluster.create(application, task_executors=task_executors)
        try:
            cluster.wait(say)
            yield
        except FiresteelError:
            cluster.discard()
            raise
    except KeyboardInterrupt:
        say(_interrupted(cluster))
        sys.exit(INTERRUPTED)


def _interrupted(cluster: KubernetesCluster) -> str:
    try:
        cluster.state()
    except NoKubernetesCluster:
        return "Interrupted: no cluster was started."
    except FiresteelError:
        pass
    return f"Interrupted: the cluster {cluster} keeps running. {_deleting(cluster)}"


def _deleting(cluster: KubernetesCluster) -> str:
    return f"Delete it with\n  {cluster.stop_command}"


def _end(cluster: KubernetesCluster, *, detached: bool) -> None:
    """Deletes an application cluster, unless its job runs or this command did not wait for it."""
    submitted, runs = _job_state(cluster)
    if runs and not detached:
        say(f"The cluster {cluster} keeps running. {_deleting(cluster)}")
    if runs or (submitted and detached):
        return
    try:
        cluster.delete(say)
    except NoKubernetesCluster:
        pass  # it has deleted itself
    except FiresteelError as error:
        say(f"The cluster {cluster} could not be deleted: {error}")
    else:
        say(f"The cluster {cluster} is deleted.")


def _job_state(cluster: KubernetesCluster) -> tuple[bool, bool]:
    """Returns whether the job is submitted, and whether it runs; both if that is unknown."""
    try:
        if (outcome := cluster.outcome()) is not None:
            return bool(outcome.status), False
        with cluster.client() as client:
            return True, not client.job_details(cluster.job_id).status.globally_terminal
    except JobNotFound:
        return False, False
    except FiresteelError:
        return True, True


def await_application(
    conf: Configuration, program: str, arguments: Sequence[str], *, detached: bool
) -> int:
    """Runs a program of the image; returns the exit code."""
    from firesteel.client.execution import await_end
    from firesteel.client.execution_context import ExecutionContext
    from firesteel.client.progress import run_display

    application = Application(program=program, arguments=arguments)
    with application_cluster(conf, application, detached=detached) as cluster:
        say(f"{program} runs on the cluster {cluster}")
        if error := _submission_error(cluster):
            raise FiresteelError(
                f"the program {program} has failed in the cluster {cluster}:\n{error}"
            )
        click.echo(f"Job has been submitted with JobID {cluster.job_id}")
        if detached:
            return 0
        display = run_display(lambda: cluster.address)
        context = ExecutionContext(
            mode="remote",
            conf=cluster.conf,
            address=cluster.address,
            display=display,
            follows_output=True,  # its logs are gone with the cluster
        )
        try:
            await_end(cluster.job_id, context, context.output_of(cluster.job_id))
        except JobCanceled:
            if not display.interrupted:
                raise
            click.echo(f"Cancelled job {cluster.job_id}.")
            return INTERRUPTED
        except KeyboardInterrupt:
            return INTERRUPTED
        finally:
            context.close()
        return 0


def _submission_error(cluster: KubernetesCluster) -> str:
    """Waits until the program has submitted its job; returns why it has not."""
    with cluster.client() as client:
        while True:
            try:
                client.job_details(cluster.job_id)
                return ""
            except JobNotFound:
                pass
            if (outcome := cluster.outcome()) is not None:
                return "" if outcome.status else outcome.error
            time.sleep(POLL_S)
