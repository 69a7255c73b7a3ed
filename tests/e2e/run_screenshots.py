"""Takes the pictures of the dashboard in docs/images: `make screenshots`."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import cloudpickle
import pyarrow as pa

from firesteel import Environment
from firesteel.connectors import DiscardSink

from . import run_screenshots
from .browser import Dashboard, chromium
from .conftest import ROOT, Session, own_cluster, running
from .jobs import unbounded

IMAGES = ROOT / "docs" / "images"
WIDTH = 1200
MEASURED_S = 40.0  # until charts have lines


class Picture(NamedTuple):
    name: str
    path: str  # {job}: the id of the job; {vertex}: that of its second vertex
    click: str = ""  # a button
    wait_for: str = "main"  # a selector
    height: int = 760


PICTURES = (
    Picture("overview", "/", wait_for="tbody tr"),
    Picture("job", "/jobs/{job}?vertex={vertex}", wait_for=".u-over", height=1000),
    Picture("checkpoints", "/jobs/{job}/checkpoints", wait_for=".phases"),
    Picture("flame-graph", "/jobs/{job}/flamegraph?vertex={vertex}", "Sample", ".flame"),
    Picture("machines", "/machines", wait_for=".slot-memory"),
)


def orders() -> Environment:
    """A job whose Python function is its bottleneck."""
    env = Environment(parallelism=2)
    (
        unbounded(env)
        .select_expr("value AS order", "value % 50 AS shop", "value % 900 + 100 AS cents")
        .rebalance()
        .map_in_arrow(rate_orders, name="Rate orders")
        .key_by("shop")
        .aggregate("count(*) AS orders", "sum(cents) AS cents")
        .sink_to(DiscardSink())
    )
    return env


def rate_orders(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for cents in batch.column("cents").to_pylist():
            if sum(ord(digit) for digit in str(cents)) < 0:
                raise ValueError(f"an order has a negative price: {cents}")
        yield batch


def broken(env: Environment) -> Environment:
    env.from_sequence(0, 1_000).rebalance().map_in_arrow(refuse, name="Read prices").print()
    return env


def refuse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    prices = {"steel": 7.5}
    for batch in batches:
        print(prices["flint"])
        yield batch


def main() -> None:
    cloudpickle.register_pickle_by_value(run_screenshots)
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        with own_cluster(directory / "cluster", task_executors=2, slots=2) as session:
            take(session, directory / "checkpoints")


def take(session: Session, checkpoints: Path) -> None:
    keys = {
        "execution__checkpointing__interval": "2 s",
        "execution__checkpointing__dir": checkpoints.as_uri(),
    }
    failed = session.submit(broken(Environment(parallelism=1)), "prices")
    list(session.client.watch_job(failed))
    job = session.submit(orders(), "orders", **keys)
    vertex = session.wait_until(job, running).vertices[1].vertex_id
    session.client.savepoint(job, str(checkpoints / "savepoints"))
    time.sleep(MEASURED_S)
    with chromium() as browser:
        for picture in PICTURES:
            tab = Dashboard(browser, session.client, width=WIDTH, height=picture.height)
            tab.log_in()
            tab.open(picture.path.format(job=job, vertex=vertex))
            if picture.click:
                tab.page.get_by_role("button", name=picture.click, exact=True).click()
            tab.page.wait_for_selector(picture.wait_for)
            tab.page.wait_for_timeout(1000)  # charts are drawn
            tab.page.screenshot(path=IMAGES / f"dashboard-{picture.name}.png")
            print(picture.name, *tab.problems)
            tab.close()


if __name__ == "__main__":
    main()
