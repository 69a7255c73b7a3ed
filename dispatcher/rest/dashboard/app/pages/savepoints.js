// The savepoints of the cluster: created, restored and disposed.
import { me, outcome, post } from "../api.js";
import { html, useState } from "../html.js";
import { usePoll } from "../poll.js";
import { href } from "../router.js";
import { useStore } from "../store.js";
import { Dialog } from "../ui/dialog.js";
import { Table } from "../ui/table.js";
import { Bytes, Label, Time } from "../ui/values.js";
import { Empty, Loaded } from "../ui/views.js";

export default function Savepoints() {
  const user = useStore(me);
  const poll = usePoll("savepoints", { every: 5000 });
  const [disposing, setDisposing] = useState(null);
  const [disposed, setDisposed] = useState([]); // since the last answer
  const reason = `Your role, ${user?.role}, may not do this.`;
  const columns = [
    { key: "path", title: "Path", className: "name", cell: ({ path }) => html`<code class="wrap">${path}</code>` },
    { key: "job", title: "Job", wide: true, cell: ({ job_id: id, job_name: name }) => (id ? html`<a class="nowrap" href=${href(["jobs", id])}>${name || id}</a>` : "") },
    { key: "time", title: "Taken", wide: true, value: ({ triggered_ms: ms }) => ms, cell: ({ triggered_ms: ms }) => html`<${Time} ms=${ms} />` },
    { key: "size", title: "Size", align: "right", wide: true, value: ({ size_bytes: bytes }) => bytes, cell: ({ size_bytes: bytes }) => html`<${Bytes} value=${bytes} />` },
    { key: "state", title: "State", cell: (savepoint) => html`<${SavepointState} savepoint=${savepoint} />` },
    { key: "actions", title: "", align: "right", cell: ({ path, disposed: gone }) => !gone && html`<span class="row end">
      ${user?.may.submit ? html`<a class="button compact" href=${href(["submit"], { savepoint: path })}>Restore</a>`
    : html`<button type="button" class="button compact" disabled title=${reason}>Restore</button>`}
      <button type="button" class="button compact danger-text" disabled=${!user?.may.savepoint} title=${user?.may.savepoint ? undefined : reason} onClick=${() => setDisposing(path)}>Dispose</button></span>` },
  ];
  return html`<h1>Savepoints</h1><section class="card" aria-label="Savepoints">
    <${Loaded} poll=${poll} rows=${6}>${({ savepoints }) => html`<${Table} caption="Savepoints" columns=${columns} rows=${savepoints.map((each) => (disposed.includes(each.path) ? { ...each, disposed: true } : each))} rowKey=${({ path }) => path}
      empty=${html`<${Empty} title="No savepoints">Take one on the page of a job, or with <code>firesteel savepoint</code>.<//>`} />`}<//>
  </section>
  ${disposing && html`<${Dialog} title="Dispose of this savepoint?" confirm="Dispose" danger onClose=${() => setDisposing(null)}
    onConfirm=${async () => { await outcome(post("savepoints/dispose", { path: disposing })); setDisposed([...disposed, disposing]); }}>
    <p>Deletes its files. No job can start from it any more. This cannot be undone.</p><code class="wrap">${disposing}</code><//>`}`;
}

/** Whether its files exist, and which jobs have started from it. */
export function SavepointState({ savepoint }) {
  const { disposed, restored_by: jobs } = savepoint;
  return html`<span class="row">
    ${disposed ? html`<${Label} tone="warn">disposed<//>` : disposed === null ? html`<${Label} title="The storage does not answer">unknown<//>` : html`<${Label} tone="done">created<//>`}
    ${jobs.length > 0 && html`<span class="small">restored by ${jobs.map(({ job_id: id, job_name: name }, index) => html`${index > 0 && ", "}<a key=${id} href=${href(["jobs", id])}>${name || id}</a>`)}</span>`}</span>`;
}
