"""The dashboard's modules and pages with answers that no small cluster gives: ten thousand
subtasks, forty vertices, unknown numbers, a Dispatcher that is away. There is no server: the
browser's requests are answered here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from dispatcher.rest.pages import DASHBOARD, HEADERS

from .browser import CHROMIUM, chromium

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")

ORIGIN = "https://firesteel.test/prefix/"  # with the path prefix of a proxy
API = f"{ORIGIN}firesteel/v1/"
JOB = "a" * 32
NAME = "<script>alert(1)</script>"
UNKNOWN = "–"
Json = dict[str, Any]


class Recorded:
    """A tab whose requests are answered from the tree and from `answers`: by path, JSON or a
    function of the query. An integer is a failure with this status.
    """

    def __init__(self, browser: Browser, answers: Mapping[str, Any], *, width: int = 1280) -> None:
        self.answers = {"me": ME, "cluster": cluster(), "jobs": jobs(), **answers}
        self.queries: list[tuple[str, Json]] = []
        self.problems: list[str] = []
        self.loaded: dict[str, int] = {}  # the size of each file
        self._context = browser.new_context(
            viewport={"width": width, "height": 800}, locale="en-GB", timezone_id="Asia/Tokyo"
        )
        self.page: Page = self._context.new_page()
        self.page.route("**/*", self._answer)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        self.page.on(
            "console",
            lambda message: (
                self.problems.append(message.text)
                if message.type == "error" and "Failed to load resource" not in message.text
                else None
            ),
        )

    def open(self, path: str) -> Page:
        self.page.goto(f"{ORIGIN}#{path}")
        return self.page

    def close(self) -> None:
        self._context.close()
        assert self.problems == []

    def _answer(self, route: Route) -> None:
        url = urlsplit(route.request.url)
        if not route.request.url.startswith(ORIGIN):
            self.problems.append(f"request to another host: {route.request.url}")
            return route.abort()
        if route.request.url.startswith(API):
            path = url.path.removeprefix("/prefix/firesteel/v1/")
            query = {name: values[0] for name, values in parse_qs(url.query).items()}
            self.queries.append((path, query))
            answer = self.answers.get(path, 404)
            if callable(answer):
                answer = answer(query)
            if isinstance(answer, int):
                body = json.dumps({"errors": [f"status {answer}"]})
                return route.fulfill(status=answer, content_type="application/json", body=body)
            return route.fulfill(content_type="application/json", body=json.dumps(answer))
        path = DASHBOARD / (url.path.removeprefix("/prefix/") or "index.html")
        if not path.is_file():
            self.problems.append(f"there is no file {path}")
            return route.fulfill(status=404)
        self.loaded[path.name] = path.stat().st_size
        return route.fulfill(path=path, headers={**HEADERS, "Content-Type": _TYPES[path.suffix]})


_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}


def now_ms() -> int:
    return int(time.time() * 1000)


ME: Json = {
    "name": "ada",
    "role": "viewer",
    "expires_ms": now_ms() + 3_600_000,
    "cluster": "test",
    "version": "1",
    "may": {"cancel": False, "savepoint": False, "submit": False, "rows": False, "admin": False},
}


def cluster() -> Json:
    return {
        "version": "1",
        "cluster": "test",
        "now_ms": now_ms(),
        "masters": [
            {"office": "dispatcher", "address": "h:1", "epoch": 3, "leads": True, "problem": None},
            {
                "office": "dispatcher",
                "address": "i:1",
                "epoch": None,
                "leads": False,
                "problem": None,
            },
            {
                "office": "job_master",
                "address": "j:1",
                "epoch": 7,
                "leads": True,
                "problem": None,
                "job_id": JOB,
                "job_name": NAME,
            },
        ],
        "slots": {"total": 4, "free": 1, "warm": 1, "missing": 2},
        "jobs": {"running": 1, "finished": 2, "canceled": 0, "failed": 1},
        "waiting": [{"job_id": JOB, "name": NAME, "explanation": "2 slots are missing"}],
        "failures": [
            {"job_id": JOB, "name": NAME, "timestamp_ms": now_ms(), "task": "x", "summary": "boom"}
        ],
        "task_executors": [],
    }


def jobs(status: str = "RUNNING") -> Json:
    started = now_ms() - 60_000
    return {
        "now_ms": now_ms(),
        "jobs": [
            {
                "id": JOB,
                "name": NAME,
                "status": status,
                "start_ms": started,
                "end_ms": None,
                "duration_ms": 60_000,
                "tasks": {status: 2},
                "owner": None,
            }
        ],
    }


def vertex(number: int, inputs: tuple[int, ...] = (), **changes: Any) -> Json:
    amounts = {"records_in": 10, "records_out": 10, "bytes_in": 1, "bytes_out": 1}
    return {
        "id": f"{number:032x}",
        "name": f"Vertex {number} <b>bold</b>",
        "parallelism": 2,
        "max_parallelism": 128,
        "slot_sharing_group": "default",
        "status": "RUNNING",
        "tasks": {"RUNNING": 2},
        "inputs": [f"{each:032x}" for each in inputs],
        "rates": amounts,
        "totals": amounts,
        "time": {
            "busy": 0.5,
            "back_pressured": 0.1,
            "idle": 0.4,
            "spark": 0.3,
            "python": 0.1,
            "exchange": 0.0,
        },
        "skew": None,
        "watermark_ms": now_ms(),
        "watermark_lag_ms": 1_500,
        "late_dropped": 0,
        "state_bytes": None,
        "operators": [],
        **changes,
    }


def job(*vertices: Json, **changes: Any) -> Json:
    return {
        "id": JOB,
        "name": NAME,
        "status": "RUNNING",
        "now_ms": now_ms(),
        "start_ms": now_ms() - 60_000,
        "end_ms": None,
        "entered": [],
        "waiting_for": None,
        "warnings": [],
        "bottleneck": None,
        "vertices": list(vertices),
        "edges": [
            {"source": source, "target": each["id"], "records_per_s": 1_500}
            for each in vertices
            for source in each["inputs"]
        ],
        **changes,
    }


def series(query: Mapping[str, str]) -> Json:
    times = [now_ms() - 10_000 * step for step in range(20, 0, -1)]
    names = ("records_in", "records_out", "busy", "back_pressured", "idle", "watermark_lag_ms")
    values: list[float | None] = [None if step == 5 else 0.5 for step in range(20)]
    ids = [query["vertex"]] if "vertex" in query else [f"{number:032x}" for number in range(40)]
    return {"times": times, "vertices": {each: dict.fromkeys(names, values) for each in ids}}


def answers_for(shown: Json) -> Json:
    return {f"jobs/{JOB}": shown, f"jobs/{JOB}/series": series}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running_browser:
        yield running_browser


@pytest.fixture
def record(browser: Browser) -> Iterator[Callable[..., Recorded]]:
    opened: list[Recorded] = []

    def recorded(answers: Mapping[str, Any] | None = None, *, width: int = 1280) -> Recorded:
        opened.append(Recorded(browser, answers or {}, width=width))
        return opened[-1]

    yield recorded
    for tab in opened:
        tab.close()


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        ("count(null)", UNKNOWN),
        ("count(NaN)", UNKNOWN),
        ("count(9_999.4)", "9,999"),
        ("count(65_500)", "65.5 k"),
        ("count(999_960)", "1.0 M"),
        ("count(2.5e15)", "2,500.0 T"),
        ("rate(0.44)", "0.4/s"),
        ("rate(Infinity)", UNKNOWN),
        ("bytes(100)", "100 B"),
        ("bytes(1_572_864)", "1.5 MiB"),
        ("duration(-5_000)", "0 ms"),
        ("duration(999.6)", "1.0 s"),
        ("duration(59_960)", "1 min 00 s"),
        ("duration(9_000_000)", "2 h 30 min"),
        ("runningTime(90_061_000)", "1 d 01 h"),
        ("percent(0.004)", "<1 %"),
        ("percent(0.916)", "92 %"),
        ("within(7)", "1"),
        ("time(0)", UNKNOWN),
        ("time(9e15)", UNKNOWN),
        ("isoTime(0.5)", "1970-01-01T00:00:00.000Z"),
        ("shortName('A(a, f(b) AS c, d, e, f, g) -> B(1)')", "A(…) → B(1)"),
        ("shortName('(((')", "((("),
        ("shortName(null)", ""),
    ],
)
def test_numbers_and_times_are_formatted(modules: Page, call: str, shown: str) -> None:
    text = modules.evaluate(f"import('./app/format.js').then((format) => String(format.{call}))")
    assert text.replace("\u202f", " ") == shown


@pytest.fixture(scope="module")
def modules(browser: Browser) -> Iterator[Page]:
    """A page that evaluates expressions over the dashboard's modules."""
    tab = Recorded(browser, {})
    yield tab.open("/nowhere")
    tab.close()


def test_vertices_do_not_overlap_and_edges_join_their_sides(modules: Page) -> None:
    vertices = [vertex(n, tuple({max(0, n - 3), n // 2} - {n})) for n in range(40)]
    plan = modules.evaluate(
        """async (vertices) => {
          const { layoutGraph, NODE } = await import("./app/graph/layout.js");
          const { nodes, edges } = layoutGraph(vertices);
          return { nodes: Object.fromEntries(nodes), edges, NODE };
        }""",
        vertices,
    )
    boxes, size = plan["nodes"], plan["NODE"]
    ids = list(boxes)
    for index, one in enumerate(ids):
        for other in ids[:index]:
            apart_x = abs(boxes[one]["x"] - boxes[other]["x"]) >= size["width"]
            assert apart_x or abs(boxes[one]["y"] - boxes[other]["y"]) >= size["height"]
    for edge in plan["edges"]:
        first, last = edge["points"][0], edge["points"][-1]
        assert first["x"] == boxes[edge["source"]]["x"] + size["width"]
        assert last["x"] == boxes[edge["target"]]["x"]


def test_a_sparkline_has_gaps_where_values_are_unknown(modules: Page) -> None:
    paths = modules.evaluate(
        "import('./app/ui/chart.js').then((chart) => chart.sparklinePaths([1, 2, null, 4, 2]))"
    )
    assert paths["line"].count("M") == 2
    assert "NaN" not in paths["line"] + paths["area"]


def test_the_first_page_is_small_and_nothing_jumps(record: Callable[..., Recorded]) -> None:
    tab = record()
    page = tab.page
    page.add_init_script(
        "window.jumps = [];"
        "new PerformanceObserver((list) => window.jumps.push(...list.getEntries()"
        "  .map((entry) => entry.value))).observe({type: 'layout-shift', buffered: true});"
    )
    tab.open("/")
    expect(page.get_by_role("link", name=NAME).first).to_be_visible()
    assert sum(tab.loaded.values()) < 250_000
    assert page.evaluate("jumps.filter((value) => value > 0.001)") == []


def test_the_overview_says_what_waits_and_what_failed(record: Callable[..., Recorded]) -> None:
    page = record().open("/")
    waiting = page.get_by_role("region", name="Waiting")
    expect(waiting).to_contain_text("2 slots are missing")
    expect(page.get_by_role("region", name="Recent failures")).to_contain_text("boom")
    expect(page.get_by_role("main")).to_contain_text("epoch 3, 1 standby")
    master = page.get_by_role("region", name="Masters").get_by_role("row").filter(has_text=NAME)
    expect(master).to_contain_text("JobMaster of")
    expect(master).to_contain_text("leads7")
    page.get_by_label("Filter jobs").fill("other")
    expect(page.get_by_text("No job matches")).to_be_visible()
    assert "text=other" in page.url


def test_the_bottleneck_stands_first(record: Callable[..., Recorded]) -> None:
    name = "Source: sales -> SelectExpr(n, '$&' AS money, rand() AS price)"
    limits = {
        "vertex_id": f"{1:032x}",
        "sentence": f"The bottleneck is {name}, because of a hot key.",
        "evidence": ["subtask 1 receives 90%"],
        "advice": "Add a salt.",
        "page": "how-to/hot-keys.md#add-a-salt",
    }
    skewed = vertex(1, (0,), name=name, skew={"subtask": 1, "share": 0.9})
    even = vertex(0, skew={"subtask": 0, "share": 0.5})
    page = record(answers_for(job(even, skewed, bottleneck=limits))).open(f"/jobs/{JOB}")
    sentence = "The bottleneck is Source: sales → SelectExpr(…), because of a hot key."
    card = page.get_by_role("region", name="Bottleneck")
    expect(card).to_contain_text(sentence)
    expect(card).to_contain_text("Add a salt. See docs/how-to/hot-keys.md#add-a-salt")
    expect(page.locator(".vertex.bottleneck")).to_have_attribute("title", name)
    expect(page.locator(".vertex.selected")).to_have_attribute("title", name)
    expect(page.get_by_text("90 % to 1")).to_be_visible()  # uneven
    expect(page.get_by_role("row").filter(has_text="Vertex 0")).to_contain_text("50 %")


def test_a_job_without_slots_says_what_it_waits_for(record: Callable[..., Recorded]) -> None:
    waits = job(vertex(0, status="SCHEDULED"), status="CREATED", waiting_for="2 slots")
    page = record(answers_for(waits)).open(f"/jobs/{JOB}")
    expect(page.get_by_role("main")).to_contain_text("The job waits for 2 slots.")


def test_rescales_are_listed_with_their_reasons(record: Callable[..., Recorded]) -> None:
    shown = vertex(0)
    change = {
        "id": "r" * 32,
        "trigger": "UPDATE_REQUIREMENT",
        "state": "COMPLETED",
        "start_ms": now_ms() - 5_000,
        "end_ms": now_ms() - 3_500,
        "before": {shown["id"]: 2},
        "after": {shown["id"]: 4},
        "reason": "autoscaler: more records arrive",
        "problem": None,
    }
    failed = {**change, "id": "f" * 32, "state": "FAILED", "problem": "no slots"}
    page = record(
        answers_for(job(shown, rescales=[failed, change], autoscaler="raised to 4"))
    ).open(f"/jobs/{JOB}")
    table = page.get_by_role("table", name="Rescales")
    expect(table.get_by_role("row")).to_have_count(3)
    expect(table).to_contain_text("2 → 4")
    expect(table).to_contain_text("autoscaler: more records arrive")
    expect(table).to_contain_text("no slots")
    expect(page.get_by_text("Autoscaler: raised to 4")).to_be_visible()


def test_unknown_numbers_are_dashes(record: Callable[..., Recorded]) -> None:
    unknown = {
        "rates": dict.fromkeys(("records_in", "records_out", "bytes_in", "bytes_out")),
        "time": dict.fromkeys(("busy", "back_pressured", "idle", "spark", "python", "exchange")),
        "watermark_ms": None,
        "watermark_lag_ms": None,
    }
    shown = job(vertex(0, **unknown), vertex(1, (0,), totals=None, **unknown))
    shown["edges"][0]["records_per_s"] = None
    page = record(answers_for(shown)).open(f"/jobs/{JOB}")
    expect(page.locator(".vertex")).to_have_count(2)
    expect(page.locator(".vertex").first).to_contain_text(f"{UNKNOWN} busy")
    expect(page.locator("h1")).to_have_text(NAME)
    assert "NaN" not in page.inner_text("main")


def test_a_graph_is_used_with_keys_and_mouse(record: Callable[..., Recorded]) -> None:
    vertices = [vertex(n, (n - 1,) if n else ()) for n in range(40)]
    page = record(answers_for(job(*vertices))).open(f"/jobs/{JOB}")
    expect(page.locator(".vertex")).to_have_count(40)
    expect(page.locator(".graph-plane")).to_have_class("graph-plane far")
    page.locator(".vertex").nth(7).focus()
    page.keyboard.press("Enter")
    expect(page.locator(".vertex.selected")).to_have_attribute("title", "Vertex 7 <b>bold</b>")
    assert f"vertex={7:032x}" in page.url
    page.get_by_role("button", name="Zoom in").click(click_count=6)
    expect(page.locator(".graph-plane")).to_have_class("graph-plane")
    page.locator(".graph").focus()
    page.keyboard.press("0")
    expect(page.locator(".graph-plane")).to_have_class("graph-plane far")
    box = page.locator(".vertex").nth(8).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    page.mouse.down()
    page.mouse.move(box["x"] + 65, box["y"] + 25, steps=3)
    page.mouse.up()  # a drag moves the graph and selects nothing
    assert f"vertex={7:032x}" in page.url
    moved = page.locator(".vertex").nth(8).bounding_box()
    assert moved is not None and moved["x"] - box["x"] == pytest.approx(60, abs=1)


def test_ten_thousand_subtasks_are_paged_and_sorted_by_the_server(
    record: Callable[..., Recorded],
) -> None:
    def subtasks(query: Mapping[str, str]) -> Json:
        offset, limit = int(query["offset"]), int(query["limit"])
        metrics = {"records_in": 5, "busy": None, "back_pressured": 0.0, "idle": 1.0}
        attempts = [
            {
                "id": "x",
                "number": 0,
                "state": "FAILED",
                "entered": {"CREATED": 1_000, "FAILED": 3_000},
                "metrics": metrics,
                "error": {"summary": "boom", "user_traceback": "<i>mine</i>", "traceback": None},
            },
            {"id": "y", "number": 1, "state": "RUNNING", "metrics": metrics, "error": None},
        ]
        return {
            "total": 10_000,
            "plans": {},
            "topics": {},
            "subtasks": [
                {"index": index, "attempts": attempts} for index in range(offset, offset + limit)
            ],
        }

    shown = job(vertex(0, parallelism=10_000, skew={"subtask": 3, "share": 0.4}))
    route = f"jobs/{JOB}/vertices/{0:032x}"
    tab = record({**answers_for(shown), route: subtasks})
    page = tab.open(f"/{route}")
    table = page.locator(".subtasks tbody tr")
    expect(table).to_have_count(20)
    assert tab.queries.count((route, {"offset": "0", "limit": "20"})) == 1  # sent early, and taken
    expect(page.locator(".subtasks tr.hot")).to_have_count(1)
    page.get_by_role("button", name="Last").click()
    expect(page.get_by_text("9981–10000 of 10,000 subtasks")).to_be_visible()
    expect(table.first).to_contain_text("9980")
    page.get_by_role("button", name="Busy").click()
    expect(page.locator("[aria-sort=descending]")).to_have_text("Busy")
    asked = {"offset": "0", "limit": "20", "sort": "busy", "order": "desc"}
    assert (route, asked) in tab.queries
    page.get_by_role("button", name="2 attempts of subtask 0 1 failed").click()
    expect(page.get_by_label("Traceback of the program")).to_have_text("<i>mine</i>")
    expect(page.get_by_text("FAILED after 2.0 s")).to_be_visible()


def test_a_vertex_shows_how_far_its_topics_are_read(record: Callable[..., Recorded]) -> None:
    operator = {"id": "o", "name": "Source: orders", "kind": "source", "group": 0}
    partition = {"topic": "orders", "committed_offset": None, "end_offset": 2_000, "paused": False}
    topics = {
        "assigned_partitions": 900,
        "pending_records": 1_234,
        "failed_commits": 0,
        "throttle_ms": 40.0,
        "partitions": [
            {**partition, "partition": 0, "current_offset": 1_500, "lag": 500},
            {**partition, "partition": 1, "current_offset": 1_900, "lag": 100, "paused": True},
        ],
    }
    route = f"jobs/{JOB}/vertices/{0:032x}"
    answer = {"total": 0, "plans": {}, "topics": {"o": topics}, "subtasks": []}
    tab = record({**answers_for(job(vertex(0, operators=[operator]))), route: lambda _: answer})
    page = tab.open(f"/{route}")
    expect(page.get_by_text("900 partitions, lag 1,234 records; the 2 with the")).to_be_visible()
    expect(page.get_by_text("throttled by 40 ms")).to_be_visible()
    rows = page.get_by_role("table", name="Partitions of Source: orders").locator("tbody tr")
    expect(rows.nth(0)).to_contain_text("reading")
    expect(rows.nth(1).get_by_role("cell")).to_have_text(
        ["orders", "1", "1,900", "–", "2,000", "100", "paused"]
    )


def test_a_page_keeps_its_data_while_the_dispatcher_is_away(
    record: Callable[..., Recorded],
) -> None:
    tab = record(answers_for(job(vertex(0), vertex(1, (0,)))))
    page = tab.open(f"/jobs/{JOB}")
    expect(page.locator(".vertex")).to_have_count(2)
    tab.answers[f"jobs/{JOB}"] = 503
    expect(page.get_by_text("The Dispatcher does not answer; trying again.")).to_be_visible()
    expect(page.locator(".vertex")).to_have_count(2)
    tab.answers[f"jobs/{JOB}"] = job(vertex(0), status="FINISHED", end_ms=now_ms())
    expect(page.locator("h1 + .badge")).to_have_text("FINISHED")
    expect(page.locator(".banner")).to_have_count(0)


def test_a_clock_that_is_wrong_harms_nothing(record: Callable[..., Recorded]) -> None:
    ahead = 3 * 3_600_000
    shown = job(vertex(0), now_ms=now_ms() + ahead, start_ms=now_ms() + ahead - 65_000)
    page = record(answers_for(shown)).open(f"/jobs/{JOB}")
    expect(page.locator(".head-facts")).to_contain_text("Duration 1 min")
    page = record(answers_for(job(vertex(0), start_ms=now_ms() + ahead))).open(f"/jobs/{JOB}")
    expect(page.locator(".head-facts")).to_contain_text("Duration 0")
