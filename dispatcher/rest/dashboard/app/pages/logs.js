// The logs of all processes of a job, live, filtered by level, task and text.
import { path, stream } from "../api.js";
import * as format from "../format.js";
import { html, useEffect, useRef, useState } from "../html.js";
import { setQuery } from "../router.js";
import { JobPage } from "../ui/job_page.js";
import { LogLines } from "../ui/log_lines.js";
import { Empty, Failure, Loading } from "../ui/views.js";

const KEPT = 2000; // lines on the page
const FIRST = 500;
const RETRY_MS = 2000;
const LEVELS = ["debug", "info", "warning", "error"];

export default function Logs({ params, query }) {
  return html`<${JobPage} id=${params.job} tab="logs">${(job) => html`<${Content} job=${job} query=${query} />`}<//>`;
}

function Content({ job, query }) {
  const [follow, setFollow] = useState(true);
  const { lines, state, error } = useLogs(job.id, { level: query.level, task: query.task, text: query.text });
  const typing = useRef(0);

  function search(event) {
    const text = event.currentTarget.value;
    clearTimeout(typing.current);
    typing.current = setTimeout(() => setQuery({ text }), 300);
  }

  return html`<section class="card" aria-label="Logs">
    <header>
      <label class="row"><span>Level</span><select class="input" value=${query.level ?? ""} onChange=${({ currentTarget }) => setQuery({ level: currentTarget.value })}>
        <option value="">all</option>${LEVELS.map((level) => html`<option key=${level} value=${level} selected=${query.level === level}>${level} and above</option>`)}</select></label>
      <label class="row log-task"><span>Task</span><select class="input" value=${query.task ?? ""} onChange=${({ currentTarget }) => setQuery({ task: currentTarget.value })}>
        <option value="">all</option>${job.vertices.map(({ id, name }) => html`<option key=${id} value=${name} selected=${query.task === name}>${name}</option>`)}</select></label>
      <input class="input" type="search" aria-label="Text" placeholder="Text" defaultValue=${query.text ?? ""} onInput=${search} />
      <span class="push row"><span class="muted small" role="status">${{ live: "live", ended: "complete", waiting: "connecting…" }[state]} · ${format.counted(lines.length, "line")}</span>
        <button type="button" class="button compact" aria-pressed=${follow ? "true" : "false"} onClick=${() => setFollow(!follow)}>${follow ? "Stop scrolling" : "Scroll with new lines"}</button></span>
    </header>
    ${error ? html`<${Failure} error=${error} />`
    : lines.length ? html`<${LogLines} lines=${lines} label="Lines" follow=${follow} onLeave=${() => setFollow(false)} />`
      : state === "waiting" ? html`<${Loading} rows=${12} />`
        : html`<${Empty} title="No lines">${query.level || query.task || query.text ? "No line passes the filters." : "The job has logged nothing yet."}<//>`}
  </section>`;
}

/** Returns the last lines. Reads again when the stream breaks, and ends with the job. */
function useLogs(job, filters) {
  const [view, setView] = useState({ lines: [], state: "waiting", error: null });
  const key = JSON.stringify([job, filters]);
  useEffect(() => {
    const controller = new AbortController();
    let timer = 0;
    let frame = 0;
    let count = 0;

    async function read() {
      let lines = [];
      const show = (state) => {
        cancelAnimationFrame(frame);
        frame = requestAnimationFrame(() => setView({ lines, state, error: null }));
      };
      try {
        await stream(path("jobs", job, "logs"), {
          query: { follow: true, lines: FIRST, ...filters }, signal: controller.signal,
          onOpen: () => show("live"),
          onData: (batch) => {
            lines = [...lines, ...batch.map((line) => ({ ...line, key: count++ }))].slice(-KEPT);
            show("live");
          },
        });
        show("ended");
      } catch (error) {
        if (controller.signal.aborted) return;
        if (error.away) {
          timer = setTimeout(read, RETRY_MS);
          setView((last) => ({ ...last, state: "waiting" }));
        } else setView({ lines, state: "ended", error });
      }
    }

    setView({ lines: [], state: "waiting", error: null });
    read();
    return () => {
      controller.abort();
      clearTimeout(timer);
      cancelAnimationFrame(frame);
    };
  }, [key]);
  return view;
}
