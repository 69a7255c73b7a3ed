// The cluster: what runs, what waits and why, what failed, and on which processes.
import * as format from "../format.js";
import { html, useMemo } from "../html.js";
import { usePoll } from "../poll.js";
import { href, setQuery } from "../router.js";
import { PagedTable, Table } from "../ui/table.js";
import { Bytes, Elapsed, ENDED, Label, Shares, State, Tasks, Tile, Time } from "../ui/values.js";
import { Empty, Failure, Loaded, Loading } from "../ui/views.js";

export default function Overview({ query }) {
  const cluster = usePoll("cluster");
  const jobs = usePoll("jobs");
  if (cluster.error && !cluster.data) {
    return html`<h1 class="sr-only">Overview</h1><div class="card"><${Failure} error=${cluster.error} /></div>`;
  }
  if (!cluster.data || (!jobs.data && !jobs.error)) {
    // together, so that no card moves another
    return html`<h1 class="sr-only">Overview</h1><${Tiles} cluster=${cluster.data} jobs=${jobs.data} />
      <div class="card"><${Loading} rows=${12} /></div>`;
  }
  return html`
    <h1 class="sr-only">Overview</h1>
    <${Tiles} cluster=${cluster.data} jobs=${jobs.data} />
    <div class="with-aside">
      <div class="stack">
        <${Jobs} poll=${jobs} query=${query} />
        <${TaskExecutors} poll=${cluster} />
        <${Masters} poll=${cluster} />
      </div>
      <div class="stack">
        <${Waiting} poll=${cluster} />
        <${Failures} poll=${cluster} />
      </div>
    </div>`;
}

function Tiles({ cluster, jobs }) {
  const waits = "\u00a0";
  const slots = cluster?.slots;
  const used = slots ? slots.total - slots.free : null;
  const warm = slots ? warmFree(used, slots.free, slots.warm) : null;
  const share = (number) => (slots?.total ? number / slots.total : 0);
  const executors = cluster?.task_executors ?? [];
  const troubled = executors.filter(({ problem }) => problem).length;
  const stopping = executors.filter(({ stops }) => stops).length;
  const active = (jobs?.jobs ?? []).filter(({ status }) => !ENDED.has(status));
  const waiting = new Set((cluster?.waiting ?? []).map(({ job_id: id }) => id));
  const unsettled = active.filter(({ id, status }) => status !== "RUNNING" || waiting.has(id)).length;
  const leader = cluster?.masters?.find(({ office, leads }) => leads && /dispatcher/i.test(office));
  const epoch = leader && format.known(leader.epoch) ? `epoch ${leader.epoch}, ` : "";
  const standbys = (cluster?.masters ?? []).filter(({ office, leads }) => !leads && /dispatcher/i.test(office)).length;
  return html`<div class="tiles">
    <${Tile} label="Active jobs" value=${jobs ? format.exactCount(active.length) : waits}
      note=${!jobs ? waits : unsettled ? `${unsettled} waiting or restarting` : active.length ? "all of them running" : "nothing runs"} />
    <${Tile} label="Ended jobs" value=${cluster ? endedCount(cluster.jobs) : waits}
      note=${cluster ? `${format.count(cluster.jobs.failed)} failed, ${format.count(cluster.jobs.canceled)} canceled` : waits} />
    <${Tile} label="Slots in use" value=${slots ? html`${used} <small>of ${slots.total}</small>` : waits}
      note=${slots ? slotNote(slots) : waits}>
      <${Shares} label="Slots" parts=${[
        { name: "part-1", label: "in use", share: share(used) },
        { name: "part-2", label: "free and warm", share: share(warm) },
        { name: "part-rest", label: "free and cold", share: share(slots?.free - warm) },
      ]} />
    <//>
    <${Tile} label="TaskExecutors" value=${cluster ? executors.length : waits}
      note=${
        !cluster
          ? waits
          : troubled
            ? html`<span class="bad-text">${format.counted(troubled, "problem")}</span>`
            : stopping
              ? `${stopping} stopping`
              : executors.length
                ? "no problems"
                : "none registered"
      } />
    <${Tile} label="Leading Dispatcher" title=${leader?.address}
      value=${!cluster ? waits : leader ? leader.address : html`<span class="bad-text">none</span>`}
      note=${!cluster ? waits : epoch + (standbys ? format.counted(standbys, "standby", "standbys") : "no standby")} />
  </div>`;
}

function endedCount({ finished, canceled, failed }) {
  return format.exactCount(finished + canceled + failed);
}

/** The number of free slots that are warm: slots in use are warm as well. */
function warmFree(used, free, warm) {
  return Math.min(free, Math.max(0, warm - used));
}

function slotNote({ free, warm, missing }) {
  const text = `${free} free, ${warm} warm`;
  return missing ? html`<span class="warn-text">${missing} missing</span>, ${text}` : text;
}

// ---- jobs

const FILTERS = [
  { name: "", title: "All", keep: () => true },
  { name: "active", title: "Active", keep: (job) => !ENDED.has(job.status) },
  { name: "ended", title: "Ended", keep: (job) => ENDED.has(job.status) },
  {
    name: "failed",
    title: "Failed",
    keep: (job) => ["FAILED", "FAILING", "RESTARTING"].includes(job.status),
  },
];
const SHOWN = 200; // rows of the table; the filter finds the others

function Jobs({ poll, query }) {
  const filter = FILTERS.find(({ name }) => name === (query.show ?? "")) ?? FILTERS[0];
  const text = (query.text ?? "").trim().toLowerCase();
  const all = poll.data?.jobs ?? [];
  const matching = useMemo(
    () =>
      all
        .filter(
          (job) =>
            filter.keep(job) &&
            (!text || `${job.name} ${job.id} ${job.owner ?? ""}`.toLowerCase().includes(text)),
        )
        .sort((a, b) => ENDED.has(a.status) - ENDED.has(b.status) || b.start_ms - a.start_ms),
    [poll.data, filter, text],
  );
  const now = poll.data?.now_ms;
  const owners = all.some(({ owner }) => owner);
  const columns = [
    {
      key: "name",
      title: "Job",
      className: "name",
      value: (job) => job.name,
      cell: (job) => html`
      <a class="clip" href=${href(["jobs", job.id])} title=${job.name}>${job.name || job.id}</a>`,
    },
    {
      key: "status",
      title: "State",
      value: (job) => job.status,
      cell: (job) => html`<${State} name=${job.status} />`,
    },
    {
      key: "tasks",
      title: "Tasks",
      wide: true,
      cell: (job) => html`<${Tasks} tasks=${job.tasks} compact />`,
    },
    owners && {
      key: "owner",
      title: "Owner",
      wide: true,
      value: (job) => job.owner ?? "",
      cell: (job) => job.owner ?? format.UNKNOWN,
    },
    {
      key: "start",
      title: "Started",
      align: "right",
      wide: true,
      value: (job) => job.start_ms,
      cell: (job) => html`<${Time} ms=${job.start_ms} now=${now} />`,
    },
    {
      key: "duration",
      title: "Duration",
      align: "right",
      value: (job) => job.duration_ms,
      cell: (job) => html`<${Elapsed} start=${job.start_ms} end=${job.end_ms} />`,
    },
  ].filter(Boolean);
  return html`<section class="card" aria-labelledby="jobs-title">
    <header>
      <h2 id="jobs-title">Jobs</h2>
      <div class="segments push" role="group" aria-label="Which jobs">${FILTERS.map(
        ({ name, title }) => html`
        <button key=${name} type="button" aria-pressed=${name === filter.name ? "true" : "false"}
          onClick=${() => setQuery({ show: name })}>${title}</button>`,
      )}</div>
      <input class="input" type="search" placeholder="Name, id or owner" aria-label="Filter jobs"
        value=${query.text ?? ""} onInput=${(event) => setQuery({ text: event.currentTarget.value })} />
    </header>
    <${Loaded} poll=${poll} rows=${6}>${() => html`
      <${Table} caption="Jobs" columns=${columns} rows=${matching.slice(0, SHOWN)} rowKey=${(job) => job.id}
        empty=${
          all.length
            ? html`<${Empty} title="No job matches">Choose All, or clear the text.<//>`
            : html`<${Empty} title="No jobs yet">Submit one: <code>firesteel run job.py</code><//>`
        } />
      ${matching.length > SHOWN && html`
        <footer>The first ${SHOWN} of ${format.counted(matching.length, "job")}; filter to see others.</footer>`}`}<//>
  </section>`;
}

// ---- processes

function TaskExecutors({ poll }) {
  const stored = poll.data?.task_executors.some(({ stored_bytes: bytes }) => bytes);
  const columns = [
    {
      key: "host",
      title: "Host",
      value: (row) => row.host,
      cell: (row) => html`<span class="clip" title=${row.host}>${row.host}</span>`,
    },
    {
      key: "id",
      title: "TaskExecutor",
      wide: true,
      value: (row) => row.id,
      cell: (row) => html`<code title=${row.id}>${format.shortId(row.id)}</code>`,
    },
    {
      key: "address",
      title: "Address",
      wide: true,
      value: (row) => row.address,
      cell: (row) => html`<span class="mono">${row.address}</span>`,
    },
    { key: "pid", title: "Pid", align: "right", wide: true, value: (row) => row.pid, cell: (row) => row.pid },
    {
      key: "slots",
      title: "Slots in use",
      numeric: true,
      value: (row) => row.slots - row.slots_free,
      cell: (row) => html`<${SlotBar} row=${row} />`,
    },
    stored && {
      key: "stored",
      title: "Results",
      align: "right",
      wide: true,
      value: (row) => row.stored_bytes,
      cell: (row) => html`<${Bytes} value=${row.stored_bytes} />`,
    },
    {
      key: "state",
      title: "State",
      value: (row) => `${row.problem}${row.stops}`,
      cell: (row) => html`<${Health} row=${row} />`,
    },
  ].filter(Boolean);
  return html`<section class="card" aria-labelledby="executors-title">
    <header><h2 id="executors-title">TaskExecutors</h2></header>
    <${Loaded} poll=${poll} rows=${3}>${(cluster) => html`
      <${Table} caption="TaskExecutors" columns=${columns} rows=${cluster.task_executors} rowKey=${(row) => row.id}
        after=${(row) => row.problem && html`<span class="bad-text wrap">${row.problem}</span>`}
        empty=${html`<${Empty} title="No TaskExecutors">Jobs wait for slots until one registers.<//>`} />`}<//>
  </section>`;
}

function SlotBar({ row }) {
  const used = row.slots - row.slots_free;
  const share = (number) => (row.slots ? number / row.slots : 0);
  return html`<span class="slot-bar"><span>${used} of ${row.slots}</span><${Shares} parts=${[
    { name: "part-1", label: "in use", share: share(used) },
    { name: "part-2", label: "free and warm", share: share(warmFree(used, row.slots_free, row.slots_warm)) },
  ]} /></span>`;
}

function Health({ row }) {
  if (row.problem) return html`<${Label} tone="bad" title=${row.problem}>problem<//>`;
  if (row.stops) return html`<${Label} tone="warn">stopping<//>`;
  return html`<${Label} tone="ok">ready<//>`;
}

const OFFICES = { dispatcher: "Dispatcher", resource_manager: "ResourceManager", job_master: "JobMaster" };

function Masters({ poll }) {
  const columns = [
    { key: "office", title: "Master", cell: (row) => html`<${MasterName} row=${row} />` },
    {
      key: "address",
      title: "Address",
      cell: (row) => html`<span class="mono">${row.address ?? format.UNKNOWN}</span>`,
    },
    {
      key: "role",
      title: "Role",
      cell: (row) =>
        row.problem
          ? html`<${Label} tone="bad">unreachable<//>`
          : row.leads
            ? html`<${Label} tone="ok">leads<//>`
            : html`<${Label}>standby<//>`,
    },
    {
      key: "epoch",
      title: "Epoch",
      align: "right",
      cell: (row) => format.exactCount(row.epoch),
    },
  ];
  return html`<section class="card" aria-labelledby="masters-title">
    <header><h2 id="masters-title">Masters</h2></header>
    <${Loaded} poll=${poll} rows=${2}>${(cluster) => html`
      <${PagedTable} caption="Masters" noun="masters" limit=${10} columns=${columns} rows=${cluster.masters}
        rowKey=${(row) => `${row.office} ${row.address} ${row.job_id ?? ""}`}
        after=${(row) => row.problem && html`<span class="bad-text wrap">${row.problem}</span>`} />`}<//>
  </section>`;
}

function MasterName({ row }) {
  const office = OFFICES[row.office] ?? row.office;
  if (!row.job_id) return office;
  return html`${office} of <a href=${href(["jobs", row.job_id])} title=${row.job_name}>${row.job_name || format.shortId(row.job_id)}</a>`;
}

// ---- what needs attention

function Waiting({ poll }) {
  return html`<section class="card" aria-labelledby="waiting-title">
    <header><h2 id="waiting-title">Waiting</h2></header>
    <${Loaded} poll=${poll} rows=${3}>${({ waiting }) =>
      waiting.length
        ? html`
      <ul class="events">${waiting.map(
        (item) => html`<li key=${item.job_id}>
        <a class="clip" href=${href(["jobs", item.job_id])} title=${item.name}>${item.name || item.job_id}</a>
        <div class="small wrap">${item.explanation}</div></li>`,
      )}</ul>`
        : html`<${Empty} title="Nothing waits">Every job has the slots it needs.<//>`}<//>
  </section>`;
}

function Failures({ poll }) {
  return html`<section class="card" aria-labelledby="failures-title">
    <header><h2 id="failures-title">Recent failures</h2></header>
    <${Loaded} poll=${poll} rows=${4}>${({ failures, now_ms: now }) =>
      failures.length
        ? html`
      <ul class="events">${failures.map(
        (item, index) => html`<li key=${`${item.job_id} ${item.timestamp_ms} ${index}`}>
        <div class="event-head">
          <a class="clip" href=${href(["jobs", item.job_id, "exceptions"])} title=${item.name}>${item.name || item.job_id}</a>
          <span class="muted small"><${Time} ms=${item.timestamp_ms} now=${now} /></span></div>
        <div class="small wrap failure-summary">${item.summary}</div>
        ${item.task && html`<div class="muted small wrap">${item.task}</div>`}</li>`,
      )}</ul>`
        : html`<${Empty} title="No failures">No task has failed recently.<//>`}<//>
  </section>`;
}
