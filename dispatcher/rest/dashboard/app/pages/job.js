// A job: its bottleneck, graph, the last hour of a vertex, and all vertices.
import { path } from "../api.js";
import * as format from "../format.js";
import { JobGraph } from "../graph/graph.js";
import { html } from "../html.js";
import { usePoll } from "../poll.js";
import { href, setQuery } from "../router.js";
import { Sparkline } from "../ui/chart.js";
import { JobPage } from "../ui/job_page.js";
import { Table } from "../ui/table.js";
import { Bytes, Count, ENDED, isSkewed, Label, Tasks, Time, TimeShares } from "../ui/values.js";
import { VertexCharts } from "../ui/vertex_charts.js";
import { Empty } from "../ui/views.js";

const SPARKLINE_POINTS = 60;
const SERIES_POLL_MS = 6000;
const BUSY = 0.8;

export default function Job({ params, query }) {
  return html`<${JobPage} id=${params.job} tab="graph">${(job) => html`<${Content} job=${job} query=${query} />`}<//>`;
}

function Content({ job, query }) {
  const ended = ENDED.has(job.status);
  const series = usePoll(path("jobs", job.id, "series"), {
    query: { points: SPARKLINE_POINTS },
    every: ended ? 0 : SERIES_POLL_MS,
  });
  if (!job.vertices.length) {
    return html`<${Warnings} job=${job} />
      <div class="card"><${Empty} title="No vertices">The job's graph is not known; only its end was stored.<//></div>`;
  }
  const bottleneck = job.bottleneck?.vertex_id;
  const selected =
    job.vertices.find(({ id }) => id === query.vertex) ??
    job.vertices.find(({ id }) => id === bottleneck) ??
    job.vertices[0];
  const select = (id) => setQuery({ vertex: id });
  return html`
    <${Warnings} job=${job} />
    <${Bottleneck} job=${job} onSelect=${select} />
    <${JobGraph} vertices=${job.vertices} edges=${job.edges} selected=${selected.id} bottleneck=${bottleneck}
      onSelect=${select} hrefOf=${(id) => href(["jobs", job.id], { vertex: id })} />
    <${VertexCharts} job=${job} vertex=${selected} head=${html`
      <h2 class="clip grow" title=${selected.name}>
        <span class="muted">[${job.vertices.indexOf(selected) + 1}]</span> ${format.shortName(selected.name)}</h2>
      <a class="button compact push" href=${href(["jobs", job.id, "vertices", selected.id])}>Operators and subtasks</a>`} />
    <${Vertices} job=${job} series=${series.data?.vertices ?? {}} selected=${selected.id} />
    <${Rescales} job=${job} />`;
}

function Warnings({ job }) {
  return (job.warnings ?? []).map(
    (warning) => html`<div key=${warning} class="notice tone-warn"><strong>Warning</strong> ${warning}</div>`,
  );
}

/** One sentence on what limits the job, with evidence; always of about the same height. */
function Bottleneck({ job, onSelect }) {
  const { tone, sentence, evidence, advice, page, vertex } = summary(job);
  return html`<section class=${`card bottleneck ${tone}`} aria-label="Bottleneck"><div class="card-body">
    <p class="bottleneck-sentence">${sentence}</p>
    <div class="bottleneck-parts">
      <ul class="evidence" aria-label="Evidence">${evidence.map((fact) => html`<li key=${fact}>${fact}</li>`)}</ul>
      ${advice && html`<p><b>Advice</b> ${advice} ${page && html`<span class="muted small">See <code>docs/${page}</code></span>`}</p>`}
    </div>
    ${
      vertex &&
      html`<p class="row">
      <button type="button" class="button compact" onClick=${() => onSelect(vertex.id)}>Show its last hour</button>
      <a class="button compact" href=${href(["jobs", job.id, "vertices", vertex.id])}>Operators and subtasks</a></p>`
    }
  </div></section>`;
}

export function summary(job) {
  const { bottleneck } = job;
  if (bottleneck) {
    const names = job.vertices.map(({ name }) => name).filter(Boolean);
    const short = (text) => names.reduce((all, name) => all.replaceAll(name, () => format.shortName(name)), text);
    return {
      tone: "",
      sentence: short(bottleneck.sentence),
      evidence: (bottleneck.evidence ?? []).map(short),
      advice: bottleneck.advice,
      page: bottleneck.page,
      vertex: job.vertices.find(({ id }) => id === bottleneck.vertex_id),
    };
  }
  if (job.waiting_for)
    return {
      tone: "waits",
      sentence: `The job waits for ${job.waiting_for.replace(/\.$/, "")}.`,
      evidence: taskCounts(job),
    };
  if (ENDED.has(job.status))
    return { tone: "unmeasured", sentence: `The job has ended: ${job.status}.`, evidence: totals(job) };
  if (job.status !== "RUNNING")
    return { tone: "unmeasured", sentence: `The job is ${job.status}.`, evidence: taskCounts(job) };
  const busiest = job.vertices.reduce(
    (most, vertex) => ((vertex.time?.busy ?? 0) > (most?.time?.busy ?? 0) ? vertex : most),
    null,
  );
  const evidence = pace(job);
  const name = format.shortName(busiest?.name);
  if (busiest) evidence.push(`The busiest vertex is ${name}: ${format.percent(busiest.time.busy)}`);
  const limited = (busiest?.time.busy ?? 0) > BUSY;
  return {
    tone: "calm",
    sentence: limited ? `${name} is busy most of the time.` : "No vertex limits the job.",
    evidence,
    vertex: busiest,
  };
}

/** The sum of what the sources have, or null if that is unknown. */
function ofSources(job, read) {
  const values = job.vertices.filter(({ inputs }) => !inputs.length).map(read).filter(format.known);
  return values.length ? values.reduce((total, value) => total + value, 0) : null;
}

function pace(job) {
  const emitted = ofSources(job, (vertex) => vertex.rates?.records_out);
  const lags = job.vertices.map((vertex) => vertex.watermark_lag_ms).filter(format.known);
  return [
    `Its sources emit ${format.known(emitted) ? format.rate(emitted) : "an unknown number of records"}`,
    lags.length ? `Watermarks lag by at most ${format.duration(Math.max(...lags))}` : "It has no watermarks",
  ];
}

function totals(job) {
  const emitted = ofSources(job, (vertex) => vertex.totals?.records_out);
  return [`Its sources have emitted ${format.exactCount(emitted)} records`, ...taskCounts(job)];
}

function taskCounts(job) {
  const counts = {};
  for (const { tasks } of job.vertices) {
    for (const [state, count] of Object.entries(tasks)) counts[state] = (counts[state] ?? 0) + count;
  }
  return [
    `Tasks: ${
      Object.entries(counts)
        .filter(([, count]) => count)
        .map(([state, count]) => `${format.exactCount(count)} ${state}`)
        .join(", ") || "none"
    }`,
  ];
}

function Vertices({ job, series, selected }) {
  const any = (read) => job.vertices.some((vertex) => read(vertex));
  const consumed = new Set(job.vertices.flatMap((vertex) => vertex.inputs));
  const rate = (direction, title, has, wide) => ({
    key: direction,
    title,
    wide,
    align: "right",
    value: (vertex) => (has(vertex) ? vertex.rates?.[direction] : null),
    cell: (vertex) =>
      has(vertex) &&
      html`<span title=${`${format.exactCount(vertex.totals?.[direction])} in all`}>
        ${format.rate(vertex.rates?.[direction])}</span>`,
  });
  const columns = [
    {
      key: "number",
      title: "#",
      wide: true,
      cell: (vertex) => html`<span class="muted">${job.vertices.indexOf(vertex) + 1}</span>`,
    },
    {
      key: "name",
      title: "Vertex",
      className: "name",
      value: (vertex) => vertex.name,
      cell: (vertex) => html`
      <a class="clip" href=${href(["jobs", job.id, "vertices", vertex.id])} title=${vertex.name}>${format.shortName(vertex.name)}</a>`,
    },
    {
      key: "tasks",
      title: "Tasks",
      wide: true,
      value: (vertex) => vertex.parallelism,
      cell: (vertex) => html`<${Tasks} tasks=${vertex.tasks} compact />`,
    },
    rate("records_in", "Records in", ({ inputs }) => inputs.length > 0, false),
    rate("records_out", "Records out", ({ id }) => consumed.has(id), true),
    {
      key: "hour",
      title: "Last hour",
      wide: true,
      cell: (vertex) => {
        const own = series[vertex.id];
        const values = vertex.inputs.length ? own?.records_in : own?.records_out;
        return html`<${Sparkline} values=${values} label="Records per second, last hour" />`;
      },
    },
    {
      key: "busy",
      title: "Time",
      numeric: true,
      value: (vertex) => vertex.time?.busy,
      help: "Sorts by the busy share",
      cell: (vertex) => html`<${Shares} vertex=${vertex} />`,
    },
    any(isSkewed) && {
      key: "skew",
      title: "Skew",
      help: "The share of the records that one subtask receives",
      wide: true,
      value: (vertex) => vertex.skew?.share,
      cell: (vertex) => (vertex.skew ? html`<${Skew} vertex=${vertex} />` : format.UNKNOWN),
    },
    any((vertex) => format.known(vertex.watermark_lag_ms)) && {
      key: "lag",
      title: "Lag",
      help: "The time between the clock and the watermark",
      align: "right",
      wide: true,
      value: (vertex) => vertex.watermark_lag_ms,
      cell: (vertex) => format.duration(vertex.watermark_lag_ms),
    },
    any((vertex) => format.known(vertex.state_bytes)) && {
      key: "state",
      title: "State",
      help: "Size in the last checkpoint",
      align: "right",
      wide: true,
      value: (vertex) => vertex.state_bytes,
      cell: (vertex) => html`<${Bytes} value=${vertex.state_bytes} />`,
    },
    any((vertex) => vertex.late_dropped) && {
      key: "late",
      title: "Late",
      help: "Late records that were dropped",
      align: "right",
      wide: true,
      value: (vertex) => vertex.late_dropped,
      cell: (vertex) => html`<${Count} value=${vertex.late_dropped} />`,
    },
  ].filter(Boolean);
  return html`<section class="card" aria-labelledby="vertices-title">
    <header><h2 id="vertices-title">Vertices</h2></header>
    <${Table} caption="Vertices" columns=${columns} rows=${job.vertices} rowKey=${(vertex) => vertex.id}
      rowClass=${(vertex) => (vertex.id === selected ? "selected" : undefined)} />
  </section>`;
}

/** The last changes of the job's parallelism, and the last decision of its autoscaler. */
function Rescales({ job }) {
  const rescales = job.rescales ?? [];
  if (!rescales.length && !job.autoscaler) return null;
  const nameOf = (id) => format.shortName(job.vertices.find((vertex) => vertex.id === id)?.name ?? id);
  const changes = ({ before, after }) =>
    Object.keys(after)
      .filter((id) => before[id] !== after[id])
      .map((id) => `${nameOf(id)}: ${before[id]} → ${after[id]}`)
      .join(", ") || "New bounds";
  const columns = [
    { key: "start", title: "Time", cell: (each) => html`<${Time} ms=${each.start_ms} now=${job.now_ms} />` },
    { key: "change", title: "Parallelism", className: "name", cell: changes },
    { key: "state", title: "State", cell: ({ state }) => state },
    {
      key: "duration",
      title: "Duration",
      align: "right",
      wide: true,
      cell: (each) => format.duration(each.end_ms && each.end_ms - each.start_ms),
    },
    { key: "reason", title: "Reason", wide: true, cell: (each) => each.problem ?? each.reason ?? each.trigger },
  ];
  return html`<section class="card" aria-labelledby="rescales-title">
    <header><h2 id="rescales-title">Rescales</h2></header>
    ${job.autoscaler && html`<p class="card-body">Autoscaler: ${job.autoscaler}</p>`}
    <${Table} caption="Rescales" columns=${columns} rows=${rescales} rowKey=${({ id }) => id} />
  </section>`;
}

function Skew({ vertex }) {
  const { subtask, share } = vertex.skew;
  if (!isSkewed(vertex)) return format.percent(share);
  return html`<${Label} tone="warn">${format.percent(share)} to ${subtask}<//>`;
}

function Shares({ vertex }) {
  return html`<span class="time-cell">
    <span>${format.percent(vertex.time?.busy)}</span><${TimeShares} time=${vertex.time} /></span>`;
}
