// Sample rows: the next rows that a subtask sends to its consumers.
import { me, path, post } from "../api.js";
import { html, useState } from "../html.js";
import { setQuery } from "../router.js";
import { useStore } from "../store.js";
import { JobPage } from "../ui/job_page.js";
import { SubtaskChoice, vertexOf } from "../ui/subtask_choice.js";
import { Table } from "../ui/table.js";
import { ENDED } from "../ui/values.js";
import { Empty, Failure } from "../ui/views.js";

const COUNTS = [10, 50, 100];

export default function Rows({ params, query }) {
  return html`<${JobPage} id=${params.job} tab="rows">${(job) => html`<${Content} job=${job} query=${query} />`}<//>`;
}

function Content({ job, query }) {
  const user = useStore(me);
  const vertex = vertexOf(job, query);
  const [view, setView] = useState({});
  const count = Number(query.count) || COUNTS[0];
  const may = user?.may.rows;
  if (ENDED.has(job.status)) return html`<div class="card"><${Empty} title="The job has ended">Only rows of running tasks can be seen.<//></div>`;

  async function take() {
    setView({ pending: true });
    try {
      setView({ sample: await post(path("jobs", job.id, "rows"), { vertex: vertex.id, subtask: Number(query.subtask) || 0, count }, { timeout: 60_000 }) });
    } catch (error) {
      setView({ error });
    }
  }

  return html`<section class="card" aria-label="Sample rows">
    <header>
      <${SubtaskChoice} job=${job} query=${query} />
      <label class="row"><span>Rows</span><select class="input" onChange=${({ currentTarget }) => setQuery({ count: currentTarget.value })}>
        ${COUNTS.map((number) => html`<option key=${number} value=${number} selected=${number === count}>${number}</option>`)}</select></label>
      <button type="button" class="button primary" disabled=${view.pending || !may} title=${may ? undefined : `Your role, ${user?.role}, may not see rows, or the cluster does not allow it.`}
        onClick=${take}>${view.pending ? "Waiting for rows…" : "Show rows"}</button>
      ${!may && html`<span class="muted small">Your role may not see rows, or the cluster does not allow it.</span>`}
    </header>
    ${view.error ? html`<${Failure} error=${view.error} />`
    : view.sample ? html`<${Sample} sample=${view.sample} />`
      : html`<${Empty} title="No rows yet">Shows the next rows that the vertex sends. They may hold personal data; the audit log records who has looked.<//>`}
  </section>`;
}

function Sample({ sample }) {
  const columns = sample.columns.map(({ name, type }, index) => ({
    key: `${index}`, title: name, help: type, value: (row) => row[index],
    align: /^(u?int|float|double|decimal)/.test(type) ? "right" : undefined, cell: (row) => html`<${Value} value=${row[index]} />`,
  }));
  return html`
    <${Table} caption="Rows" columns=${columns} rows=${sample.rows} rowKey=${(row, index) => index} empty=${html`<${Empty} title="No rows in time" />`} />
    ${sample.note && html`<footer>${sample.note}</footer>`}`;
}

function Value({ value }) {
  if (value === null) return html`<span class="muted">null</span>`;
  return html`<span class="cell-value">${typeof value === "object" ? JSON.stringify(value) : String(value)}</span>`;
}
