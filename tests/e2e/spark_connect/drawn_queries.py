"""Draws streaming queries as text of PySpark programs: `query(seed)` is always the same one.

A query reads the streams `a` and `b`, both with the columns k STRING, n BIGINT, d DOUBLE and
at TIMESTAMP, and the table `names` with k and label. Its result does not depend on the order of
rows. Some queries are not valid, as those that people write.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

COLUMNS = {"k": "string", "n": "long", "d": "double", "at": "time"}


@dataclass(frozen=True, kw_only=True)
class Query:
    """`text` is an expression; `mode` an output mode; `sink` is "batches" or "files"."""

    seed: int
    text: str
    mode: str
    sink: str


SIDES = 10_000  # the first seed of queries whose inputs have state before they meet


@dataclass(frozen=True, kw_only=True)
class _Stream:
    """A query so far. `columns` are names and kinds; `time` is the column with the watermark."""

    text: str
    columns: dict[str, str]
    time: str = ""
    aggregated: bool = False
    grouped_by_time: bool = False
    stateful: bool = False

    def then(self, text: str, columns: dict[str, str] | None = None) -> _Stream:
        return replace(
            self, text=self.text + text, columns=self.columns if columns is None else columns
        )

    def of(self, *kinds: str) -> list[str]:
        return [name for name, kind in self.columns.items() if kind in kinds]


def query(seed: int) -> Query:
    draw = random.Random(seed)
    stream = _row_steps(draw, _source(draw, "a"), draw.randint(0, 2))
    kind = draw.choice(
        ("rows", "distinct", "group", "group", "group", "session", "join", "join", "union", "twice")
    )
    if seed >= SIDES:
        return _of_sides(draw, seed)
    if kind != "rows" and (kind in ("join", "twice", "session") or draw.random() < 0.75):
        stream = _watermark(draw, stream)
        stream = _row_steps(draw, stream, draw.randint(0, 1))
    match kind:
        case "distinct":
            stream = _distinct(draw, stream)
        case "group" | "session":
            stream = _group(draw, stream, session=kind == "session")
        case "join":
            stream = _stream_join(draw, stream)
            if draw.random() < 0.25:
                stream = _group(draw, stream)
        case "union":
            stream = _union(draw, stream)
            stream = draw.choice((_group, _distinct, lambda _, same: same))(draw, stream)
        case "twice":
            stream = _twice(draw, stream)
    stream = _row_steps(draw, stream, draw.randint(0, 2))
    mode = _mode(draw, stream)
    if mode == "complete" and draw.random() < 0.3:
        stream = stream.then(f".orderBy({_names(list(stream.columns))}).limit(5)")
    sink = "files" if mode == "append" and draw.random() < 0.3 else "batches"
    return Query(seed=seed, text=stream.text, mode=mode, sink=sink)


def _of_sides(draw: random.Random, seed: int) -> Query:
    """Returns a join or a union of two streams with watermarks, one of which has state before."""
    steps = [
        ("", COLUMNS),
        ('.dropDuplicates(["k", "at"]).select("k", "at")', {"k": "string", "at": "time"}),
        (
            '.dropDuplicatesWithinWatermark(["k", "at"]).select("k", "at")',
            {"k": "string", "at": "time"},
        ),
        (
            '.groupBy("k", F.window("at", "1 hour")).agg(F.expr("sum(n)").alias("n"))'
            '.select("k", "n", F.window_time("window").alias("at"))',
            {"k": "string", "n": "long", "at": "time"},
        ),
    ]
    left, right = draw.choice([(a, b) for a in range(4) for b in range(4) if a or b])
    first, second = (
        _watermark(draw, _source(draw, name)).then(*steps[step])
        for name, step in (("a", left), ("b", right))
    )
    step = draw.choice((_union, _union, _stream_join))
    stream = step(draw, first, second)
    return Query(seed=seed, text=stream.text, mode="append", sink=draw.choice(("files", "batches")))


def _mode(draw: random.Random, stream: _Stream) -> str:
    if draw.random() < 0.1:
        return draw.choice(("append", "update", "complete"))
    if not stream.aggregated:
        return "append" if stream.stateful or draw.random() < 0.7 else "update"
    if stream.grouped_by_time and draw.random() < 0.6:
        return "append"
    return draw.choice(("update", "complete"))


def _source(draw: random.Random, name: str) -> _Stream:
    return _Stream(text=name, columns=dict(COLUMNS))


def _names(names: list[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


# -- steps without state


def _row_steps(draw: random.Random, stream: _Stream, count: int) -> _Stream:
    for _ in range(count):
        steps = (_where, _where, _with_column, _select, _static_join, _in_pandas, _explode)
        stream = draw.choice(steps)(draw, stream)
    return stream


def _where(draw: random.Random, stream: _Stream) -> _Stream:
    conditions = [f"{name} IS NOT NULL" for name in stream.of("string", "long", "double")]
    conditions += [f"{name} IN ('a', 'b', 'ab')" for name in stream.of("string")]
    conditions += [f"NOT {name} <=> 'c'" for name in stream.of("string")]
    conditions += [f"{name} > 1" for name in stream.of("long", "double")]
    conditions += [f"{name} % 3 <> 1 OR {name} IS NULL" for name in stream.of("long")]
    conditions += [
        f"{name} >= TIMESTAMP '2024-03-31 00:30:00' OR {name} IS NULL" for name in stream.of("time")
    ]
    conditions += [f"hour({name}) <> 2" for name in stream.of("time")]
    conditions += [f"{name}.start IS NOT NULL" for name in stream.of("window")]
    return stream.then(f'.where("{draw.choice(conditions)}")') if conditions else stream


def _with_column(draw: random.Random, stream: _Stream) -> _Stream:
    choices = [("n", "long", f"coalesce({name}, 7) * 2") for name in stream.of("long")]
    choices += [("m", "long", f"cast({name} AS BIGINT)") for name in stream.of("double")]
    choices += [("k", "string", f"concat({name}, 'b')") for name in stream.of("string")]
    choices += [("h", "long", f"CAST(hour({name}) AS BIGINT)") for name in stream.of("time")]
    choices += [("e", "long", "1")]
    name, kind, expression = draw.choice(choices)
    columns = {**stream.columns, name: kind}
    if stream.of("string") and draw.random() < 0.25:
        text = f'.withColumn("u", shout("{draw.choice(stream.of("string"))}"))'
        return stream.then(text, {**stream.columns, "u": "string"})
    return stream.then(f'.withColumn("{name}", F.expr("{expression}"))', columns)


def _select(draw: random.Random, stream: _Stream) -> _Stream:
    kept = [name for name in stream.columns if name == stream.time or draw.random() < 0.8]
    if not kept:
        return stream
    draw.shuffle(kept)
    if draw.random() < 0.3 and stream.of("window"):
        window = stream.of("window")[0]
        others = [name for name in kept if name != window]
        columns = {name: stream.columns[name] for name in others} | {"end": "time"}
        text = "".join(f'"{name}", ' for name in others)
        return replace(
            stream.then(f'.select({text}F.col("{window}.end").alias("end"))', columns), time=""
        )
    return stream.then(f".select({_names(kept)})", {n: stream.columns[n] for n in kept})


def _static_join(draw: random.Random, stream: _Stream) -> _Stream:
    if stream.columns.get("k") != "string" or "label" in stream.columns:
        return stream
    how = draw.choice(("inner", "left", "left_semi", "left_anti"))
    columns = {"k": "string", **{n: c for n, c in stream.columns.items() if n != "k"}}
    if how in ("inner", "left"):
        columns["label"] = "string"
    return stream.then(f'.join(names, "k", "{how}")', columns)


def _in_pandas(draw: random.Random, stream: _Stream) -> _Stream:
    if stream.time or set(stream.columns) != set(COLUMNS):
        return stream
    schema = "k string, n bigint, d double, at timestamp"
    return stream.then(f'.mapInPandas(halved, "{schema}")', dict(COLUMNS))


def _explode(draw: random.Random, stream: _Stream) -> _Stream:
    if not stream.of("long"):
        return stream
    name = draw.choice(stream.of("long"))
    return stream.then(
        f'.withColumn("e", F.explode(F.array("{name}", F.lit(2))))',
        {**stream.columns, "e": "long"},
    )


# -- steps with state


def _watermark(draw: random.Random, stream: _Stream) -> _Stream:
    if "at" not in stream.columns:
        return stream
    delay = draw.choice(("0 seconds", "30 minutes", "1 hour"))
    return replace(stream.then(f'.withWatermark("at", "{delay}")'), time="at")


def _distinct(draw: random.Random, stream: _Stream) -> _Stream:
    scalars = stream.of("string", "long", "double", "time")
    if not scalars:
        return stream
    keys = [name for name in scalars if draw.random() < 0.6] or scalars[:1]
    if stream.time and stream.time not in keys and draw.random() < 0.6:
        keys.append(stream.time)
    columns = {name: stream.columns[name] for name in keys}
    time = stream.time if stream.time in keys else ""
    within = bool(time) and draw.random() < 0.4
    if not within and draw.random() < 0.2:
        return replace(stream.then(".distinct()"), stateful=True)
    method = "dropDuplicatesWithinWatermark" if within else "dropDuplicates"
    text = f".{method}([{_names(keys)}]).select({_names(keys)})"
    return replace(stream.then(text, columns), time=time, stateful=True)


_SIZES = ('"1 hour"', '"30 minutes"', '"1 hour", "20 minutes"', '"90 minutes", "30 minutes"')


def _group(draw: random.Random, stream: _Stream, *, session: bool = False) -> _Stream:
    keys: list[tuple[str, str, str]] = []  # texts, names and kinds
    times = stream.of("time")
    time = stream.time if stream.time in times else (times[0] if times else "")
    if time and session:
        gap = draw.choice(('"10 minutes"', '"25 minutes"'))
        if stream.of("long") and draw.random() < 0.3:
            name = draw.choice(stream.of("long"))
            gap = f"F.expr(\"CASE WHEN {name} > 2 THEN '20 minutes' ELSE '5 minutes' END\")"
        keys.append((f'F.session_window("{time}", {gap})', "session_window", "window"))
    elif time and draw.random() < 0.75:
        sizes = draw.choice((*_SIZES, '"1 hour", "1 hour", "15 minutes"'))
        keys.append((f'F.window("{time}", {sizes})', "window", "window"))
    elif time and draw.random() < 0.3:
        keys.append((f'"{time}"', time, "time"))
    plain = [name for name in stream.of("string", "long") if draw.random() < 0.4][:2]
    keys += [(f'"{name}"', name, stream.columns[name]) for name in plain]
    if session and time and not plain:  # Spark has no sessions without another key
        third = f'F.expr("CAST(minute({time}) % 3 AS BIGINT)").alias("third")'
        keys.append((third, "third", "long"))
    timed = bool(stream.time) and any(kind in ("window", "time") for *_, kind in keys)
    calls = [_aggregate(draw, stream, number) for number in range(draw.randint(1, 3))]
    columns = {name: kind for _, name, kind in keys}
    columns |= {f"x{number}": kind for number, (_, kind) in enumerate(calls)}
    grouping = ", ".join(text for text, *_ in keys)
    method = "rollup" if plain and not session and draw.random() < 0.08 else "groupBy"
    text = f".{method}({grouping}).agg({', '.join(text for text, _ in calls)})"
    time = next((name for _, name, kind in keys if kind in ("window", "time")), "") if timed else ""
    return replace(
        stream.then(text, columns),
        time=time,
        aggregated=True,
        grouped_by_time=timed,
        stateful=True,
    )


def _aggregate(draw: random.Random, stream: _Stream, number: int) -> tuple[str, str]:
    choices = [("count(*)", "long")]
    for name in stream.of("long"):
        choices += [(f"{call}({name})", "long") for call in ("count", "sum", "min", "max")]
        choices += [
            (f"round(avg({name}), 6)", "double"),
            (f"count_if({name} > 1)", "long"),
            (f"sum({name}) FILTER (WHERE {name} % 2 = 0)", "long"),
            (f"array_sort(collect_set({name}))", "array"),
            (f"bit_or({name})", "long"),
            (f"percentile({name}, 0.5)", "double"),
            (f"percentile_approx({name}, 0.9)", "long"),
            (f"round(skewness({name}) FILTER (WHERE {name} > 0), 6)", "double"),
            (f"try_sum({name})", "long"),
        ]
    for name in stream.of("double"):
        choices += [
            (f"sum({name})", "double"),
            (f"max({name}) - min({name})", "double"),
            (f"round(stddev({name}), 6)", "double"),
            (f"approx_count_distinct({name})", "long"),
        ]
    for name in stream.of("string"):
        choices += [
            (f"max({name})", "string"),
            (f"count({name})", "long"),
            (f"bool_or({name} = 'a')", "boolean"),
            (f"listagg({name}, '+') WITHIN GROUP (ORDER BY {name} DESC)", "string"),
            (f"max(struct({name}, 1 AS one)).{name}", "string"),
        ]
    for name in stream.of("time"):
        choices += [(f"max({name})", "latest"), (f"min({name})", "latest")]
    text, kind = draw.choice(choices)
    return f'F.expr("{text}").alias("x{number}")', kind


def _union(draw: random.Random, stream: _Stream, other: _Stream | None = None) -> _Stream:
    if other is None:
        other = _row_steps(draw, _source(draw, draw.choice("ab")), draw.randint(0, 1))
        if stream.time or draw.random() < 0.1:
            other = _watermark(draw, other)
    shared = [n for n, kind in stream.columns.items() if other.columns.get(n) == kind]
    if not shared:
        return stream
    columns = {name: stream.columns[name] for name in shared}
    names = _names(shared)
    text = f".select({names}).union({other.text}.select({names}))"
    time = stream.time if stream.time in shared and other.time else ""
    return replace(stream.then(text, columns), time=time)


def _stream_join(draw: random.Random, stream: _Stream, other: _Stream | None = None) -> _Stream:
    if other is None:
        other = _watermark(draw, _row_steps(draw, _source(draw, "b"), draw.randint(0, 1)))
    if stream.columns.get("k") != "string" or other.columns.get("k") != "string":
        return stream
    renamed = {f"{name}2": kind for name, kind in other.columns.items()}
    names = ", ".join(f"{name} AS {name}2" for name in other.columns)
    right = other.text + f".selectExpr({', '.join(f'{part!r}' for part in names.split(', '))})"
    condition = ["k = k2"]
    if stream.time and "at2" in renamed and draw.random() < 0.9:
        condition += draw.choice(
            (
                ["at2 BETWEEN at - INTERVAL 20 MINUTES AND at + INTERVAL 40 MINUTES"],
                ["at2 >= at", "at2 <= at + INTERVAL 1 HOUR"],
                ["at > at2 - INTERVAL 30 MINUTES", "at < at2 + INTERVAL 10 MINUTES"],
                ["at = at2"],
            )
        )
    if stream.columns.get("n") == renamed.get("n2") == "long" and draw.random() < 0.25:
        condition.append(draw.choice(("n = n2", "n < n2", "n2 > 1")))
    how = draw.choice(("inner", "inner", "left", "right", "full", "left_semi"))
    if (
        how != "inner" and "n < n2" in condition
    ):  # only inner joins of streams compare other columns
        condition[condition.index("n < n2")] = "n > 1"
    columns = stream.columns if how == "left_semi" else {**stream.columns, **renamed}
    text = f'.join({right}, F.expr("{" AND ".join(condition)}"), "{how}")'
    time = {"right": "at2"}.get(how, stream.time)
    return replace(stream.then(text, columns), time=time, stateful=True)


def _twice(draw: random.Random, stream: _Stream) -> _Stream:
    """An aggregate of an aggregate of windows."""
    first = _group(draw, stream)
    if first.columns.get("window") != "window":
        return first
    label = draw.choice(
        ('F.window("window", "2 hours")', 'F.window(F.window_time("window"), "3 hours")')
    )
    number = draw.choice(first.of("long", "double") or [""])
    call = f"sum({number})" if number else "count(*)"
    text = f'.groupBy({label}).agg(F.expr("{call}").alias("y"), F.expr("count(*)").alias("z"))'
    return first.then(text, {"window": "window", "y": "long", "z": "long"})


# -- rows


def rows(seed: int, name: str, phase: int) -> list[dict[str, object]]:
    """Returns the rows of a phase of a stream: some are null, some have the same time, and those of
    later phases may be late. They are newer by two hours on average.
    """
    draw = random.Random(f"{seed} {name} {phase}")
    return [_row(draw, phase) for _ in range(40)]


def _row(draw: random.Random, phase: int) -> dict[str, object]:
    minute = phase * 120 + 5 * draw.randint(-24 if draw.random() < 0.3 else 0, 24)
    hour, minute = divmod(60 * 22 + minute, 60)
    day, hour = 30 + hour // 24, hour % 24
    month, day = (3, day) if day <= 31 else (4, day - 31)
    return {
        "k": draw.choice(("a", "b", "c", "ab", None)),
        "n": draw.choice((0, 1, 2, 3, 4, -5, None)),
        "d": draw.choice((0.5, 1.25, 2.0, -3.5, 8.0, None)),
        "at": None
        if draw.random() < 0.08
        else f"2024-{month:02}-{day:02}T{hour:02}:{minute:02}:00Z",
    }
