// The flame graph of a subtask: how its time divides over the functions that it calls, in Python and
// in the JVM.
import { me, path, post } from "../api.js";
import * as format from "../format.js";
import { html, useState } from "../html.js";
import { setQuery } from "../router.js";
import { useStore } from "../store.js";
import { FlameGraph } from "../ui/flame_graph.js";
import { JobPage } from "../ui/job_page.js";
import { SubtaskChoice, vertexOf } from "../ui/subtask_choice.js";
import { ENDED } from "../ui/values.js";
import { Empty, Failure } from "../ui/views.js";

const SECONDS = [3, 10, 30];
const TYPES = [["full", "all samples"], ["on_cpu", "on the CPU"], ["off_cpu", "waiting"]];

export default function FlameGraphPage({ params, query }) {
  return html`<${JobPage} id=${params.job} tab="flamegraph">${(job) => html`<${Content} job=${job} query=${query} />`}<//>`;
}

function Content({ job, query }) {
  const user = useStore(me);
  const vertex = vertexOf(job, query);
  const [view, setView] = useState({});
  const [search, setSearch] = useState("");
  const seconds = Number(query.seconds) || SECONDS[0];
  const subtask = Number(query.subtask) || 0;
  if (ENDED.has(job.status)) return html`<div class="card"><${Empty} title="The job has ended">Only running tasks can be sampled.<//></div>`;

  async function record() {
    setView({ pending: true });
    try {
      const graph = await post(path("jobs", job.id, "flamegraph"), { vertex: vertex.id, subtask, seconds, type: query.type }, { timeout: (seconds + 30) * 1000 });
      setView({ graph, of: `${vertex.name} (${subtask + 1}/${vertex.parallelism})` });
    } catch (error) {
      setView({ error });
    }
  }

  return html`<section class="card" aria-label="Flame graph">
    <header>
      <${SubtaskChoice} job=${job} query=${query} />
      <label class="row"><span>For</span><select class="input" value=${seconds} onChange=${({ currentTarget }) => setQuery({ seconds: currentTarget.value })}>
        ${SECONDS.map((count) => html`<option key=${count} value=${count} selected=${count === seconds}>${count} s</option>`)}</select></label>
      <label class="row"><span>Show</span><select class="input" onChange=${({ currentTarget }) => setQuery({ type: currentTarget.value })}>
        ${TYPES.map(([type, label]) => html`<option key=${type} value=${type} selected=${type === query.type}>${label}</option>`)}</select></label>
      <button type="button" class="button primary" disabled=${view.pending || !user?.may.cancel} title=${user?.may.cancel ? undefined : `Your role, ${user?.role}, may not do this.`}
        onClick=${record}>${view.pending ? "Sampling…" : "Sample"}</button>
      ${view.graph && html`<input class="input push" type="search" aria-label="Search functions" placeholder="Search" value=${search} onInput=${({ currentTarget }) => setSearch(currentTarget.value)} />`}
    </header>
    ${view.error ? html`<${Failure} error=${view.error} />`
    : view.graph ? html`<${FlameGraph} graph=${view.graph} title=${view.of} search=${search} />`
      : html`<${Empty} title=${view.pending ? "Sampling" : "No samples yet"}>${view.pending
        ? `The stacks of the subtask are recorded for ${seconds} s.`
        : "The stacks of a subtask are recorded while it runs, in Python and in the JVM. This slows it a little."}<//>`}
  </section>`;
}
