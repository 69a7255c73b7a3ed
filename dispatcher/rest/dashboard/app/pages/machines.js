// Machines: the memory of each slot by part against its limit; CPU, disk and threads.
import * as format from "../format.js";
import { html } from "../html.js";
import { usePoll } from "../poll.js";
import { href } from "../router.js";
import { Table } from "../ui/table.js";
import { Bytes, Count, Shares, State } from "../ui/values.js";
import { Empty, Loaded } from "../ui/views.js";

export default function Machines() {
  const poll = usePoll("machines", { every: 5000 });
  return html`<h1>Machines</h1>
    <${Loaded} poll=${poll} rows=${12}>${({ task_executors: executors }) => (executors.length
    ? executors.map((executor) => html`<${Executor} key=${executor.id} executor=${executor} />`)
    : html`<div class="card"><${Empty} title="No TaskExecutors">None is registered.<//></div>`)}<//>`;
}

function Executor({ executor }) {
  const { memory, disk } = executor;
  const cores = executor.cpu_cores;
  return html`<section class="card" aria-label=${`TaskExecutor ${executor.id}`}>
    <header><h2>${executor.host}</h2><code class="muted" title=${executor.id}>${format.shortId(executor.id)}</code>
      <span class="push muted small"><${Count} value=${executor.threads} /> threads</span></header>
    <div class="card-body gauges">
      <${Gauge} label="CPU" share=${executor.cpu_load} text=${`${format.percent(executor.cpu_load)} of ${format.counted(cores ?? 0, "core")}`} />
      <${Gauge} label="Memory" share=${memory && memory.used / memory.total} text=${html`<${Bytes} value=${memory?.used} /> of <${Bytes} value=${memory?.total} />`} />
      <${Gauge} label=${`Disk ${disk?.path ?? ""}`} share=${disk && 1 - disk.free / disk.total} text=${html`<${Bytes} value=${disk?.free} /> free of <${Bytes} value=${disk?.total} />`} />
    </div>
    <${Slots} slots=${executor.slots} />
  </section>`;
}

function Gauge({ label, share, text }) {
  const tone = share > 0.95 ? "full" : share > 0.85 ? "high" : "part-1";
  return html`<div class="gauge"><div class="row"><span class="muted clip">${label}</span><span class="push nowrap">${text}</span></div>
    <${Shares} label=${label} parts=${[{ name: tone, label: "in use", share }]} /></div>`;
}

const PARTS = [
  { key: "heap", label: "JVM heap", name: "part-1", bytes: (memory) => memory?.jvm_heap?.used },
  { key: "jvm", label: "other JVM", name: "part-2", bytes: (memory) => memory?.jvm_other },
  { key: "python", label: "Python", name: "part-3", bytes: (memory) => memory?.python },
  { key: "shared", label: "shared", name: "part-4", bytes: (memory) => memory?.shared },
];

function Slots({ slots }) {
  const largest = Math.max(...slots.map(({ memory }) => memory?.limit ?? memory?.total ?? 0), 1);
  const part = ({ key, label, bytes }) => ({ key, title: label, align: "right", wide: true, value: ({ memory }) => bytes(memory), cell: ({ memory }) => html`<${Bytes} value=${bytes(memory)} />` });
  return html`<${Table} caption="Slots" rows=${slots} rowKey=${({ index }) => index} empty=${html`<${Empty} title="No slots" />`} columns=${[
    { key: "index", title: "Slot", value: ({ index }) => index, cell: ({ index }) => index },
    { key: "job", title: "Job", className: "name", value: ({ job_name: name }) => name ?? "", cell: ({ job_id: id, job_name: name }) => (id
      ? html`<a class="clip" href=${href(["jobs", id])}>${name ?? id}</a>` : html`<span class="muted">free</span>`) },
    { key: "cpu", title: "CPU", help: "Cores in use", align: "right", wide: true, value: ({ cpu_load: load }) => load, cell: ({ cpu_load: load }) => format.percent(load) },
    { key: "threads", title: "Threads", align: "right", wide: true, value: ({ threads }) => threads, cell: ({ threads }) => html`<${Count} value=${threads} />` },
    { key: "memory", title: html`<span>Memory</span>`, value: ({ memory }) => memory?.total, cell: ({ memory }) => html`<${Memory} memory=${memory} largest=${largest} />` },
    ...PARTS.map(part),
    { key: "state", title: "State", help: "Managed memory, in which Python keeps state", align: "right", wide: true, value: ({ memory }) => memory?.managed?.used, cell: ({ memory }) => html`<${Bytes} value=${memory?.managed?.used} /><div class="muted small">of <${Bytes} value=${memory?.managed?.total} /></div>` },
    { key: "total", title: "Total", align: "right", value: ({ memory }) => memory?.total, cell: ({ memory }) => html`<${Bytes} value=${memory?.total} /><div class="muted small">${memory?.limit ? html`of <${Bytes} value=${memory.limit} />` : "no limit"}</div>` },
  ]} />
  <footer><ul class="legend" aria-label="Colours">${PARTS.map(({ key, label, name }) => html`<li key=${key}><i class=${`swatch ${name}`} />${label}</li>`)}</ul></footer>`;
}

/** The parts against the slot's limit, or against the largest slot if it has none. */
function Memory({ memory, largest }) {
  if (!memory) return format.UNKNOWN;
  const whole = memory.limit ?? largest;
  return html`<div class="slot-memory"><${Shares} label="Memory" parts=${PARTS.map(({ name, label, bytes }) => ({ name, label, share: (bytes(memory) ?? 0) / whole }))} /></div>`;
}
