// The frame of every page of a job: its name, state and times, and the tabs of its pages.
import { path } from "../api.js";
import { exactCount } from "../format.js";
import { html, useEffect, useState } from "../html.js";
import { ENDED_POLL_MS, POLL_MS, usePoll } from "../poll.js";
import { href } from "../router.js";
import { JobActions } from "./job_actions.js";
import { Elapsed, ENDED, State, Time } from "./values.js";
import { Failure, Loading } from "./views.js";

const TABS = [
  { name: "graph", title: "Graph", parts: [] },
  { name: "checkpoints", title: "Checkpoints", parts: ["checkpoints"] },
  { name: "exceptions", title: "Exceptions", parts: ["exceptions"] },
  { name: "logs", title: "Logs", parts: ["logs"] },
  { name: "flamegraph", title: "Flame graph", parts: ["flamegraph"] },
  { name: "rows", title: "Sample rows", parts: ["rows"] },
];

/** `id`: of the job; `tab`: the name of the page's tab; `children`: a function of the job (the answer
 * of GET jobs/ID). `titleOf`: for a page of a part of the job, a function of the job that returns the
 * part's name; such a page has its own heading.
 */
export function JobPage({ id, tab, titleOf, children }) {
  const poll = usePoll(path("jobs", id), {
    every: (job) => (ENDED.has(job.status) ? ENDED_POLL_MS : POLL_MS),
  });
  const job = poll.data;
  const [done, setDone] = useState(""); // what the last action did
  const title = job ? titleOf?.(job) ?? job.name : "Job";
  useEffect(() => { document.title = `${title} · Firesteel`; }, [title]);
  if (!job && poll.error) {
    const gone = poll.error.status === 404 ? "This job does not exist, or it has been removed." : undefined;
    return html`<h1 class="sr-only">Job</h1><${Failure} error=${poll.error} title=${gone} />`;
  }
  return html`
    <div class="page-head">
      <nav aria-label="Breadcrumbs"><ol class="crumbs">
        <li><a href=${href([])}>Jobs</a></li>
        ${titleOf && html`<li><a href=${href(["jobs", id])}>${job?.name ?? id}</a></li>`}
        <li aria-current="page">${title}</li>
      </ol></nav>
      ${!titleOf && html`
        <div class="row">
          <h1 tabindex="-1">${job?.name ?? "\u00a0"}</h1>
          ${job && html`<${State} name=${job.status} />`}
          ${job && html`<${JobActions} job=${job} onDone=${(text) => { setDone(text); poll.refresh(); }} />`}
        </div>
        <div class="head-facts">${job && html`<${JobFacts} job=${job} />`}</div>`}
    </div>
    ${done && html`<div class="notice tone-done wrap" role="status">${done}</div>`}
    <nav class="tabs" aria-label="Pages of the job">${TABS.map((item) => html`
      <a key=${item.name} href=${href(["jobs", id, ...item.parts])}
        aria-current=${item.name === tab ? "page" : undefined}>${item.title}</a>`)}</nav>
    ${poll.error && html`<div class="notice tone-warn" role="status"><strong>${
      poll.error.status === 404 ? "This job has been removed; its last state is shown." : poll.error.message
    }</strong></div>`}
    ${job ? children(job) : html`<div class="card"><${Loading} rows=${9} /></div>`}`;
}

function JobFacts({ job }) {
  return html`
    <span><span class="muted">ID </span><code>${job.id}</code></span>
    <span>Started <b><${Time} ms=${job.start_ms} now=${job.now_ms} /></b></span>
    ${job.end_ms ? html`<span>Ended <b><${Time} ms=${job.end_ms} now=${job.now_ms} /></b></span>` : null}
    <span>Duration <b><${Elapsed} start=${job.start_ms} end=${job.end_ms} /></b></span>
    <span>Restarts <b>${exactCount(restarts(job))}</b></span>`;
}

function restarts(job) {
  return (job.entered ?? []).filter(({ status }) => status === "RESTARTING").length;
}
