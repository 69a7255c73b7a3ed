// A vertex: how its operators run and why, and its subtasks with all attempts.
import { path } from "../api.js";
import * as format from "../format.js";
import { html, useRef, useState } from "../html.js";
import { ENDED_POLL_MS, POLL_MS, usePoll } from "../poll.js";
import { href, setQuery } from "../router.js";
import { JobPage } from "../ui/job_page.js";
import { Pager, Table } from "../ui/table.js";
import {
  Bytes,
  Count,
  Elapsed,
  ENDED,
  isSkewed,
  Label,
  Shares,
  State,
  Tasks,
  Tile,
  Time,
  TimeShares,
} from "../ui/values.js";
import { VertexCharts } from "../ui/vertex_charts.js";
import { Empty, Failure, Loaded } from "../ui/views.js";

const PAGE = 20; // subtasks; early.js requests the first page

export default function Vertex({ params, query }) {
  const offset = Math.max(0, Number.parseInt(query.offset, 10) || 0);
  const poll = usePoll(path("jobs", params.job, "vertices", params.vertex), {
    query: { offset, limit: PAGE, sort: query.sort, order: query.order },
    every: ({ subtasks }) => (subtasks.every(hasEnded) ? ENDED_POLL_MS : POLL_MS),
  });
  const find = (job) => job.vertices.find(({ id }) => id === params.vertex);
  return html`<${JobPage} id=${params.job} tab="graph" titleOf=${(job) => format.shortName(find(job)?.name ?? "Vertex")}>${(
    job,
  ) => {
    const vertex = find(job);
    if (!vertex)
      return html`<${Failure} error=${{ message: "The job has no such vertex." }} title="Not found" />`;
    return html`<${Content} job=${job} vertex=${vertex} poll=${poll} offset=${offset} query=${query} />`;
  }}<//>`;
}

function hasEnded({ attempts }) {
  return ENDED.has(attempts.at(-1)?.state);
}

function Content({ job, vertex, poll, offset, query }) {
  return html`
    <${Head} job=${job} vertex=${vertex} />
    <${Numbers} vertex=${vertex} />
    <${Work} time=${vertex.time} />
    <${Operators} vertex=${vertex} plans=${poll.data?.plans ?? {}} />
    <${Topics} vertex=${vertex} topics=${poll.data?.topics ?? {}} />
    <${VertexCharts} job=${job} vertex=${vertex} detailed head=${html`<h2>Last hour</h2>`} />
    <${Subtasks} poll=${poll} vertex=${vertex} offset=${offset} query=${query} />`;
}

function Head({ job, vertex }) {
  const inputs = vertex.inputs.map((id) => job.vertices.find((other) => other.id === id)).filter(Boolean);
  return html`<div class="page-head">
    <div class="row"><h1 tabindex="-1" title=${vertex.name}>${format.shortName(vertex.name)}</h1><${State} name=${vertex.status} />
      ${job.bottleneck?.vertex_id === vertex.id && html`<${Label} tone="bad">bottleneck<//>`}</div>
    <div class="head-facts">
      <span>Parallelism <b>${format.exactCount(vertex.parallelism)}</b> of at most <b>${format.exactCount(vertex.max_parallelism)}</b></span>
      <span>Slot sharing group <b>${vertex.slot_sharing_group || "default"}</b></span>
      ${
        inputs.length > 0 &&
        html`<span class="inputs">Reads from ${inputs.map(
          (input, index) => html`${index > 0 && ", "}<a
        key=${input.id} href=${href(["jobs", job.id, "vertices", input.id])}>${format.shortName(input.name)}</a>`,
        )}</span>`
      }
      ${Object.values(vertex.tasks).filter(Boolean).length > 1 && html`<${Tasks} tasks=${vertex.tasks} />`}
    </div>
  </div>`;
}

function Numbers({ vertex }) {
  const { rates, totals, skew } = vertex;
  return html`<div class="tiles small-tiles">
    <${Tile} label="Records in" value=${vertex.inputs.length ? format.rate(rates?.records_in) : format.UNKNOWN}
      note=${`${format.count(totals?.records_in)} in all`} />
    <${Tile} label="Records out" value=${format.rate(rates?.records_out)} note=${`${format.count(totals?.records_out)} in all`} />
    <${Tile} label="Bytes in" value=${format.byteRate(rates?.bytes_in)} note=${`${format.bytes(totals?.bytes_in)} in all`} />
    <${Tile} label="Bytes out" value=${format.byteRate(rates?.bytes_out)} note=${`${format.bytes(totals?.bytes_out)} in all`} />
    <${Tile} label="Watermark lag" value=${format.duration(vertex.watermark_lag_ms)}
      note=${html`<${Time} ms=${vertex.watermark_ms} />`} title="The time between the clock and the watermark" />
    <${Tile} label="State" value=${format.bytes(vertex.state_bytes)} note="last checkpoint" />
    <${Tile} label="Late records" value=${format.count(vertex.late_dropped)} note="dropped" />
    <${Tile} label="Skew" value=${html`<span class=${isSkewed(vertex) ? "warn-text" : ""}>${format.percent(skew?.share)}</span>`}
      note=${skew ? `go to subtask ${skew.subtask}` : "\u00a0"} title="The share of the records that one subtask receives" />
  </div>`;
}

/** The busy time by where it is spent; what remains is the runtime's own. */
function Work({ time }) {
  const busy = format.within(time?.busy);
  const measured = ["spark", "python", "exchange"].map((name) => format.within(time?.[name]));
  const rest = Math.max(0, busy - measured.reduce((sum, share) => sum + share, 0));
  const known = format.known(time?.busy);
  const parts = [
    {
      name: "part-1",
      label: "Spark",
      share: known ? time.spark : null,
      help: "plans, and rows into and out of the JVM",
    },
    {
      name: "part-3",
      label: "Python",
      share: known ? time.python : null,
      help: "functions and operators in Python",
    },
    { name: "part-2", label: "Exchange", share: known ? time.exchange : null, help: "sending batches" },
    { name: "part-4", label: "Other work", share: known ? rest : null, help: "busy, and none of the others" },
    {
      name: "back-pressured",
      label: "Back-pressured",
      share: time?.back_pressured,
      help: "waiting for its consumers",
    },
    { name: "part-rest", label: "Idle", share: time?.idle, help: "waiting for input" },
  ];
  return html`<section class="card" aria-labelledby="work-title">
    <header><h2 id="work-title">Where its time goes</h2></header>
    <div class="card-body work"><${Shares} parts=${parts} label="Time" />
      <ul class="legend">${parts.map(
        (part) => html`<li key=${part.label} title=${part.help}>
        <i class=${`swatch ${part.name}`} />${part.label} <b>${format.percent(part.share)}</b></li>`,
      )}</ul>
    </div>
  </section>`;
}

// ---- operators

// Why an operator without a reason runs as it does.
const REASONS = {
  Python: "a function of the program",
  unknown: "not reported yet",
  none: "code of Firesteel or of the connector",
};

function engine(operator) {
  const text = operator.computes || (operator.runs_on_spark ? "Spark" : "Not on Spark");
  const name =
    ["Spark", "Firesteel", "Arrow", "Python"].find((candidate) => text.startsWith(candidate)) ?? text;
  return {
    name,
    text,
    tone: { Spark: "done", Firesteel: "ok", Arrow: "ok", Python: "warn" }[name] ?? "still",
  };
}

/** Operators in groups: those of a group run in one plan on Spark. */
export function groupsOf(operators) {
  const groups = new Map();
  for (const operator of operators) {
    if (!groups.has(operator.group)) groups.set(operator.group, []);
    groups.get(operator.group).push(operator);
  }
  return [...groups.values()];
}

function Operators({ vertex, plans }) {
  return html`<section class="card" aria-labelledby="operators-title">
    <header><h2 id="operators-title">Operators</h2>
      <span class="muted small">where each one runs, and what excludes the faster way</span></header>
    ${
      vertex.operators.length
        ? html`<ol class="operators">${groupsOf(vertex.operators).map(
            (group) => html`
      <li key=${group[0].id} class=${group.length > 1 ? "fused" : undefined}>
        ${group.length > 1 && html`<div class="fused-title">One plan on Spark of ${group.length} operators</div>`}
        ${group.map((operator) => html`<${Operator} key=${operator.id} operator=${operator} plan=${plans[operator.id]} />`)}
      </li>`,
          )}</ol>`
        : html`<${Empty} title="No operators" />`
    }
  </section>`;
}

function Operator({ operator, plan }) {
  const { name, text, tone } = engine(operator);
  const reason = REASONS[operator.computes ? name : operator.runs_on_spark ? "unknown" : "none"] ?? "the fastest way";
  return html`<div class="operator">
    <div class="operator-name"><b>${operator.name}</b>
      ${operator.kind && operator.kind !== operator.name && html`<span class="muted small"> ${operator.kind}</span>`}
      ${operator.uid && html`<div class="muted small">uid <code>${operator.uid}</code></div>`}
      ${format.known(operator.state_bytes) && html`<div class="muted small">state <${Bytes} value=${operator.state_bytes} /></div>`}</div>
    <div class="operator-engine"><${Label} tone=${tone}>${name}<//>
      <span class="small">${text !== name && text}</span>
      ${operator.reads && html`<div class="small"><span class="muted">reads by</span> ${operator.reads}</div>`}</div>
    <div class="operator-reason small">${operator.reason || html`<span class="muted">${reason}</span>`}</div>
    ${
      plan &&
      html`<details class="plan"><summary>Spark plan</summary>
      <pre tabindex="0" aria-label=${`The plan of ${operator.name}`}>${plan}</pre></details>`
    }
  </div>`;
}

// ---- topics

const PARTITION_COLUMNS = [
  { key: "topic", title: "Topic", cell: ({ topic }) => topic },
  { key: "partition", title: "Partition", align: "right", cell: ({ partition }) => partition },
  { key: "current", title: "Next offset", align: "right", cell: (p) => format.exactCount(p.current_offset) },
  {
    key: "committed",
    title: "Committed",
    align: "right",
    wide: true,
    cell: (p) => format.exactCount(p.committed_offset),
  },
  { key: "end", title: "End", align: "right", wide: true, cell: (p) => format.exactCount(p.end_offset) },
  { key: "lag", title: "Lag", align: "right", cell: (p) => format.exactCount(p.lag) },
  {
    key: "state",
    title: "State",
    cell: ({ paused }) => (paused ? html`<${Label} tone="warn">paused<//>` : "reading"),
  },
];

function Topics({ vertex, topics }) {
  return vertex.operators
    .filter(({ id }) => topics[id]?.assigned_partitions)
    .map(({ id, name }) => html`<${TopicsOfOperator} key=${id} id=${id} name=${name} progress=${topics[id]} />`);
}

function TopicsOfOperator({ id, name, progress }) {
  const { partitions, assigned_partitions: assigned, failed_commits: failed, throttle_ms: throttle } = progress;
  return html`<section class="card" aria-labelledby=${`topics-${id}`}>
    <header><h2 id=${`topics-${id}`}>Topics of ${format.shortName(name)}</h2>
      <span class="muted small">${format.exactCount(assigned)} partitions, lag ${format.exactCount(progress.pending_records)} records${
        assigned > partitions.length && `; the ${partitions.length} with the largest lags`
      }</span>
      ${throttle > 0 && html`<${Label} tone="warn">throttled by ${format.duration(throttle)}<//>`}
      ${failed > 0 && html`<${Label} tone="warn">${format.exactCount(failed)} commits of offsets failed<//>`}</header>
    <${Table} caption=${`Partitions of ${name}`} columns=${PARTITION_COLUMNS} rows=${partitions}
      rowKey=${(p) => `${p.topic} ${p.partition}`} />
  </section>`;
}

// ---- subtasks

function Subtasks({ poll, vertex, offset, query }) {
  const [open, setOpen] = useState(() => new Set());
  const last = useRef(null);
  last.current = poll.data ?? last.current; // while the next page is read, the previous one is shown
  const toggle = (index) =>
    setOpen((before) => {
      const after = new Set(before);
      if (!after.delete(index)) after.add(index);
      return after;
    });
  const sort = { key: query.sort ?? "index", descending: query.order === "desc" };
  const metric = (key, title, cell, extra = {}) => ({
    key,
    title,
    align: "right",
    wide: true,
    ...extra,
    cell: ({ attempts }) => cell(attempts.at(-1)?.metrics ?? {}),
  });
  const columns = [
    { key: "index", title: "#", sortable: true, cell: ({ index }) => index },
    {
      key: "state",
      title: "State",
      cell: ({ attempts }) => html`<${State} name=${attempts.at(-1)?.state ?? "CREATED"} />`,
    },
    {
      key: "attempts",
      title: "Attempts",
      cell: (subtask) =>
        html`<${Attempts} subtask=${subtask} open=${open.has(subtask.index)} onToggle=${toggle} />`,
    },
    {
      key: "host",
      title: "Host",
      wide: true,
      cell: ({ attempts }) => html`<${Place} attempt=${attempts.at(-1)} />`,
    },
    metric("records_in", "In", (m) => html`<${Amounts} records=${m.records_in} bytes=${m.bytes_in} />`, {
      sortable: true,
      wide: false,
    }),
    metric("records_out", "Out", (m) => html`<${Amounts} records=${m.records_out} bytes=${m.bytes_out} />`),
    metric(
      "busy",
      "Busy",
      (m) =>
        html`<span class="time-cell"><span>${format.percent(m.busy)}</span><${TimeShares} time=${m} /></span>`,
      { sortable: true, wide: false, align: undefined, numeric: true },
    ),
    metric("back_pressured", "Back-pressured", (m) => format.percent(m.back_pressured), { sortable: true }),
    metric("spark", "Spark", (m) => format.percent(m.spark)),
    metric("python", "Python", (m) => format.percent(m.python)),
    metric("watermark", "Watermark", (m) => html`<${Time} ms=${m.watermark_ms} />`),
  ];
  return html`<section class="card" aria-labelledby="subtasks-title">
    <header><h2 id="subtasks-title">Subtasks</h2>
      <div class="push">${
        last.current &&
        html`
        <${Pager} offset=${offset} limit=${PAGE} total=${last.current.total} noun="subtasks"
        onOffset=${(to) => setQuery({ offset: to || undefined })} />`
      }</div></header>
    <${Loaded} poll=${{ ...poll, data: last.current }} rows=${8}>${({ subtasks }) => html`
      <div aria-busy=${poll.loading ? "true" : "false"} class="subtasks">
        <${Table} caption="Subtasks" columns=${columns} rows=${subtasks} rowKey=${({ index }) => index}
        sort=${sort} onSort=${({ key, descending }) => setQuery({ sort: key, order: descending ? "desc" : "asc", offset: undefined })}
        rowClass=${({ index }) => (isSkewed(vertex) && index === vertex.skew.subtask ? "hot" : undefined)}
        after=${(subtask) => open.has(subtask.index) && html`<${AllAttempts} attempts=${subtask.attempts} />`} /></div>`}<//>
  </section>`;
}

function Amounts({ records, bytes }) {
  return html`<${Count} value=${records} /><div class="muted small"><${Bytes} value=${bytes} /></div>`;
}

function Attempts({ subtask, open, onToggle }) {
  const { attempts, index } = subtask;
  const failures = attempts.filter(({ error }) => error).length;
  return html`<button type="button" class="button compact plain"
    aria-expanded=${open ? "true" : "false"} onClick=${() => onToggle(index)}>
    <span aria-hidden="true">${open ? "▾" : "▸"}</span>${attempts.length}<span class="sr-only">
      ${attempts.length === 1 ? "attempt" : "attempts"} of subtask ${index}</span>
    ${failures > 0 && html`<span class="bad-text">${failures} failed</span>`}</button>`;
}

function Place({ attempt }) {
  if (!attempt?.task_executor_id) return format.UNKNOWN;
  return html`<span class="nowrap" title=${`TaskExecutor ${attempt.task_executor_id}, slot ${attempt.slot}`}>${attempt.host}
    <span class="muted mono"> ${format.shortId(attempt.task_executor_id)}/${attempt.slot}</span></span>`;
}

const STATES = [
  "CREATED",
  "SCHEDULED",
  "DEPLOYING",
  "INITIALIZING",
  "RUNNING",
  "RECONCILING",
  "CANCELING",
  "FINISHED",
  "CANCELED",
  "FAILED",
];

function AllAttempts({ attempts }) {
  return html`<ol class="attempts">${[...attempts].reverse().map((attempt) => {
    const entered = STATES.map((state) => [state, attempt.entered?.[state]]).filter(([, ms]) => ms);
    const end = entered.findLast(([state]) => ENDED.has(state))?.[1];
    const start = entered[0]?.[1];
    return html`<li key=${attempt.id}>
      <div class="row"><b>Attempt ${attempt.number}</b><${State} name=${attempt.state} /><${Place} attempt=${attempt} />
        ${start && html`<span class="muted">
          started <${Time} ms=${start} />, ${end ? "took" : "for"} <${Elapsed} start=${start} end=${end} /></span>`}</div>
      <div class="muted small steps">
        ${entered.slice(1).map(([state, ms], index) => html`<span key=${state}>${state} after ${format.duration(ms - entered[index][1])}</span>`)}</div>
      ${
        attempt.error &&
        html`<div class="notice tone-bad"><strong class="wrap">${attempt.error.summary}</strong>
        ${attempt.error.user_traceback && html`
          <pre tabindex="0" aria-label="Traceback of the program">${attempt.error.user_traceback}</pre>`}
        ${attempt.error.traceback && html`
          <details><summary>Whole traceback</summary>
            <pre tabindex="0" aria-label="Whole traceback">${attempt.error.traceback}</pre></details>`}</div>`
      }
    </li>`;
  })}</ol>`;
}
