// The checkpoints and savepoints of a job: a timeline, and the parts of each.
import { path } from "../api.js";
import * as format from "../format.js";
import { html, useRef } from "../html.js";
import { usePoll } from "../poll.js";
import { setQuery } from "../router.js";
import { JobPage } from "../ui/job_page.js";
import { PagedTable } from "../ui/table.js";
import { SavepointState } from "./savepoints.js";
import { Bytes, ENDED, Label, State, Tile, Time } from "../ui/values.js";
import { Empty, Loaded } from "../ui/views.js";

export default function Checkpoints({ params, query }) {
  return html`<${JobPage} id=${params.job} tab="checkpoints">${(job) => html`<${Content} job=${job} query=${query} />`}<//>`;
}

function Content({ job, query }) {
  const poll = usePoll(path("jobs", job.id, "checkpoints"), { every: ENDED.has(job.status) ? 0 : 2000 });
  const any = poll.data?.checkpoints.some(({ savepoint, path: where }) => savepoint && where);
  const saved = usePoll(any ? "savepoints" : null, { every: 10_000 }); // which were restored or disposed
  return html`<${Loaded} poll=${poll} rows=${10}>${(data) => {
    const newest = [...data.checkpoints].sort((a, b) => b.triggered_ms - a.triggered_ms);
    const select = (id) => setQuery({ checkpoint: id });
    const selected = newest.find(({ id }) => String(id) === query.checkpoint)
      ?? newest.find(({ state }) => state === "COMPLETED") ?? newest[0];
    return html`
      <${Tiles} data=${data} newest=${newest} />
      ${data.restored && html`<div class="notice tone-done"><strong>Restored</strong> from <code class="wrap">${data.restored.path}</code></div>`}
      ${newest.length === 0
    ? html`<div class="card"><${Empty} title="No checkpoints yet">${data.interval_ms
      ? `One is taken every ${format.duration(data.interval_ms)}.`
      : "The job takes none by itself: set execution.checkpointing.interval."}<//></div>`
    : html`
        <${Timeline} checkpoints=${newest.slice().reverse()} selected=${selected} onSelect=${select} now=${job.now_ms} />
        <${Parts} job=${job} checkpoint=${selected} />
        <${All} checkpoints=${newest} savepoints=${saved.data?.savepoints ?? []} selected=${selected} onSelect=${select} now=${job.now_ms} />`}`;
  }}<//>`;
}

function Tiles({ data, newest }) {
  const last = newest.find(({ state }) => state === "COMPLETED");
  const { counts } = data;
  return html`<div class="tiles small-tiles">
    <${Tile} label="Completed" value=${format.exactCount(counts.completed)} />
    <${Tile} label="Failed" value=${counts.failed ? html`<span class="bad-text">${format.exactCount(counts.failed)}</span>` : "0"} />
    <${Tile} label="In progress" value=${format.exactCount(counts.in_progress)} />
    <${Tile} label="Interval" value=${data.interval_ms ? format.duration(data.interval_ms) : "none"} />
    <${Tile} label="Last duration" value=${format.duration(last?.duration_ms)} />
    <${Tile} label="Last size" value=${html`<${Bytes} value=${last?.size_bytes} />`} />
  </div>`;
}

function kind({ savepoint }) {
  return savepoint ? "savepoint" : "checkpoint";
}

// ---- the timeline

const BARS = 60;

/** A bar per checkpoint: its height is its duration. */
function Timeline({ checkpoints, selected, onSelect, now }) {
  const shown = checkpoints.slice(-BARS);
  const took = (checkpoint) => checkpoint.duration_ms ?? (isOpen(checkpoint) ? now - checkpoint.triggered_ms : 0);
  const longest = Math.max(...shown.map(took), 1);
  const bars = useRef(null);

  function move(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!by) return;
    event.preventDefault();
    const at = shown.indexOf(selected);
    const to = Math.min(shown.length - 1, Math.max(0, at + by));
    onSelect(shown[to].id);
    bars.current.children[to].focus();
  }

  return html`<section class="card" aria-labelledby="timeline-title">
    <header><h2 id="timeline-title">Timeline</h2>
      <ul class="legend" aria-label="Colours">
        <li><i class="swatch completed" />completed</li><li><i class="swatch savepoint" />savepoint</li>
        <li><i class="swatch failed" />failed</li><li><i class="swatch in-progress" />in progress</li>
      </ul>
      <span class="push muted small">Height: duration, up to ${format.duration(longest)}</span></header>
    <div class="card-body timeline" ref=${bars} role="group" aria-label="Durations of checkpoints" onKeyDown=${move}>
      ${shown.map((checkpoint) => {
    const label = `${kind(checkpoint)} ${checkpoint.id}: ${checkpoint.state}, ${format.duration(took(checkpoint))}, ${format.bytes(checkpoint.size_bytes)}`;
    return html`<button key=${checkpoint.id} type="button" class=${checkpoint === selected ? "selected" : undefined} aria-pressed=${checkpoint === selected ? "true" : "false"}
        tabindex=${checkpoint === selected || (!shown.includes(selected) && checkpoint === shown.at(-1)) ? 0 : -1}
        aria-label=${label} title=${label} onClick=${() => onSelect(checkpoint.id)}>
        <i class=${barClass(checkpoint)} style=${{ height: `${Math.max(3, (100 * took(checkpoint)) / longest)}%` }} /></button>`;
  })}
    </div>
  </section>`;
}

function barClass(checkpoint) {
  if (isOpen(checkpoint)) return "in-progress";
  if (checkpoint.state === "FAILED") return "failed";
  return checkpoint.savepoint ? "savepoint" : "completed";
}

function isOpen({ state }) {
  return state !== "COMPLETED" && state !== "FAILED";
}

// ---- all checkpoints

function All({ checkpoints, savepoints, selected, onSelect, now }) {
  const savepointAt = new Map(savepoints.map((each) => [each.path, each]));
  const columns = [
    { key: "id", title: "ID", value: ({ id }) => Number(id), cell: (checkpoint) => html`
      <button type="button" class="button compact plain" aria-pressed=${checkpoint === selected ? "true" : "false"} onClick=${() => onSelect(checkpoint.id)}>${checkpoint.id}</button>` },
    { key: "kind", title: "Kind", wide: true, value: kind, cell: (checkpoint) => (checkpoint.savepoint ? html`<${Label} tone="warn">savepoint<//>` : "checkpoint") },
    { key: "state", title: "State", value: ({ state }) => state, cell: ({ state }) => html`<${State} name=${state} />` },
    { key: "triggered", title: "Triggered", wide: true, value: ({ triggered_ms: ms }) => ms, cell: ({ triggered_ms: ms }) => html`<${Time} ms=${ms} now=${now} />` },
    { key: "tasks", title: "Tasks", align: "right", wide: true, cell: ({ acknowledged, tasks }) => `${format.count(acknowledged)} of ${format.count(tasks)}` },
    { key: "alignment", title: "Alignment", align: "right", wide: true, value: ({ alignment_ms: ms }) => ms, cell: ({ alignment_ms: ms }) => format.duration(ms) },
    { key: "duration", title: "Duration", align: "right", value: ({ duration_ms: ms }) => ms, cell: ({ duration_ms: ms }) => format.duration(ms) },
    { key: "size", title: "Size", align: "right", value: ({ size_bytes: bytes }) => bytes, cell: ({ size_bytes: bytes }) => html`<${Bytes} value=${bytes} />` },
  ];
  return html`<section class="card" aria-labelledby="all-title">
    <header><h2 id="all-title">Checkpoints and savepoints</h2></header>
    <${PagedTable} caption="Checkpoints and savepoints" noun="checkpoints" columns=${columns} rows=${checkpoints} rowKey=${({ id }) => id}
      rowClass=${(checkpoint) => (checkpoint === selected ? "selected" : undefined)}
      after=${({ failure, path: where }) => (failure || where) && html`
        ${failure && html`<div class="bad-text small wrap">${failure}</div>`}
        ${savepointAt.has(where) && html`<${SavepointState} savepoint=${savepointAt.get(where)} />`}
        ${where && html`<code class="muted wrap">${where}</code>`}`} />
  </section>`;
}

// ---- one checkpoint

const PHASES = [
  { key: "start_delay_ms", label: "start delay", name: "part-rest", help: "From the trigger until the first barrier arrives" },
  { key: "alignment_ms", label: "alignment", name: "part-3", help: "From the first barrier until the last one arrives" },
  { key: "sync_ms", label: "synchronous", name: "part-1", help: "While the task does not process rows" },
  { key: "async_ms", label: "asynchronous", name: "part-2", help: "While files are written and the task continues" },
];

function Parts({ job, checkpoint }) {
  const open = isOpen(checkpoint);
  const poll = usePoll(path("jobs", job.id, "checkpoints", checkpoint.id), { every: open ? 2000 : 0 });
  return html`<section class="card" aria-labelledby="parts-title">
    <header><h2 id="parts-title">Subtasks of ${kind(checkpoint)} ${checkpoint.id}</h2>
      <ul class="legend" aria-label="Colours">${PHASES.map(({ key, label, name, help }) => html`<li key=${key} title=${help}><i class=${`swatch ${name}`} />${label}</li>`)}</ul></header>
    <${Loaded} poll=${poll} rows=${5}>${({ subtasks }) => {
    const total = (part) => PHASES.reduce((sum, { key }) => sum + (part[key] ?? 0), 0);
    const longest = Math.max(...subtasks.map(total), 1);
    const time = ({ key, label, help }) => ({
      key, title: label[0].toUpperCase() + label.slice(1), help, align: "right", wide: true, value: (part) => part[key], cell: (part) => format.duration(part[key]),
    });
    return html`<${PagedTable} caption="Subtasks" noun="subtasks" limit=${10} initialSort=${{ key: "phases", descending: true }} rows=${subtasks} rowKey=${({ task }) => task} columns=${[
      { key: "task", title: "Subtask", className: "name", value: ({ task }) => task, cell: ({ task }) => html`<span class="clip" title=${task}>${task}</span>` },
      ...PHASES.map(time),
      { key: "phases", title: "Time", help: "The sum of the four times", value: total, cell: (part) => html`<${Phases} part=${part} longest=${longest} />` },
      { key: "size", title: "Size", align: "right", value: ({ size_bytes: bytes }) => bytes, cell: ({ size_bytes: bytes }) => html`<${Bytes} value=${bytes} />` },
    ]} empty=${html`<${Empty} title="The parts of this checkpoint are not known">Only those of the last checkpoints of a running job are kept.<//>`} />`;
  }}<//>
  </section>`;
}

function Phases({ part, longest }) {
  const text = PHASES.map(({ key, label }) => `${label} ${format.duration(part[key])}`).join(", ");
  return html`<div class="shares phases" role="img" aria-label=${text} title=${text}>${PHASES.map(({ key, name }) => html`
    <i key=${key} class=${name} style=${{ width: `${(100 * (part[key] ?? 0)) / longest}%` }} />`)}</div>`;
}
