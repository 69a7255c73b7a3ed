// The errors of a job, the newest first: the program's line, then the logs around it.
import { path, stream } from "../api.js";
import * as format from "../format.js";
import { html, useEffect, useState } from "../html.js";
import { usePoll } from "../poll.js";
import { href } from "../router.js";
import { JobPage } from "../ui/job_page.js";
import { LogLines } from "../ui/log_lines.js";
import { ENDED, Label, Time } from "../ui/values.js";
import { Empty, Failure, Loaded, Loading } from "../ui/views.js";

const AROUND_MS = 5000;

export default function Exceptions({ params }) {
  return html`<${JobPage} id=${params.job} tab="exceptions">${(job) => html`<${Content} job=${job} />`}<//>`;
}

function Content({ job }) {
  const poll = usePoll(path("jobs", job.id, "exceptions"), { every: ENDED.has(job.status) ? 0 : 2000 });
  return html`<${Loaded} poll=${poll} rows=${8}>${({ exceptions }) => (exceptions.length === 0
    ? html`<div class="card"><${Empty} title="No exceptions">No task of this job has failed.<//></div>`
    : exceptions.map((exception) => html`
      <${Exception} key=${`${exception.timestamp_ms} ${exception.task}`} job=${job} exception=${exception} />`))}<//>`;
}

function Exception({ job, exception }) {
  const { timestamp_ms: at, task, location, summary, user_traceback: own, traceback, restarted } = exception;
  const [logs, setLogs] = useState(false);
  return html`<section class="card exception" aria-label=${summary}>
    <header><${Time} ms=${at} now=${job.now_ms} /><b>${task || "The job"}</b>
      ${location && html`<span class="muted">${location}</span>`}
      <span class="push">${restarted === true && html`<${Label} tone="warn">restarted<//>`}${restarted === false && html`<${Label} tone="bad">ended the job<//>`}</span></header>
    <div class="card-body stack">
      <div class="exception-summary wrap">${summary}</div>
      ${own && html`<pre class="code" tabindex="0" aria-label="Traceback of the program">${own}</pre>`}
      ${traceback && traceback !== own && html`<details><summary>Whole traceback</summary>
        <pre class="code" tabindex="0" aria-label="Whole traceback">${traceback}</pre></details>`}
      <div class="row">
        <button type="button" class="button compact" aria-expanded=${logs ? "true" : "false"} onClick=${() => setLogs(!logs)}>${logs ? "Hide the logs" : "Logs around it"}</button>
        <a class="button compact" href=${href(["jobs", job.id, "logs"])}>All logs</a></div>
      ${logs && html`<${Around} job=${job} at=${at} />`}
    </div>
  </section>`;
}

/** The lines from five seconds before the error until five seconds after it. */
function Around({ job, at }) {
  const [lines, setLines] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    const controller = new AbortController();
    const near = [];
    stream(path("jobs", job.id, "logs"), {
      query: { follow: false, lines: 10_000 }, signal: controller.signal,
      onData: (batch) => near.push(...batch.filter(({ time_ms: ms }) => Math.abs(ms - at) <= AROUND_MS)),
    }).then(() => setLines(near), (failure) => controller.signal.aborted || setError(failure));
    return () => controller.abort();
  }, [job.id, at]);
  if (error) return html`<${Failure} error=${error} />`;
  if (!lines) return html`<${Loading} rows=${4} />`;
  if (!lines.length) return html`<${Empty} title="No lines">The logs have no lines within ${format.duration(AROUND_MS)} of the error.<//>`;
  return html`<${LogLines} lines=${lines} marked=${at} label="Logs around the error" />`;
}
