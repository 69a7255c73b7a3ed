// The last hour of a vertex.
import { path } from "../api.js";
import * as format from "../format.js";
import { html, useEffect, useState } from "../html.js";
import { usePoll } from "../poll.js";
import { TimeChart } from "./chart.js";
import { ENDED } from "./values.js";
import { Empty, Failure } from "./views.js";

const POINTS = 240;
const POLL_MS = 6000;
const AFTER_MS = 100;

/** `head`: what stands in the card's header; `detailed`: also bytes, parts of the busy time, and the
 * busiest subtask.
 */
export function VertexCharts({ job, vertex, head, detailed = false }) {
  const ended = ENDED.has(job.status);
  const [painted, setPainted] = useState(false); // the rest of the page, which is more urgent
  useEffect(() => {
    const timer = setTimeout(() => setPainted(true), AFTER_MS);
    return () => clearTimeout(timer);
  }, []);
  const poll = usePoll(painted ? path("jobs", job.id, "series") : null, {
    query: { vertex: vertex.id, points: POINTS },
    every: ended ? 0 : POLL_MS,
  });
  const times = poll.data?.times;
  const values = poll.data?.vertices?.[vertex.id];
  let charts = html`<${Charts} vertex=${vertex} times=${times} values=${values} detailed=${detailed} />`;
  if (poll.error && !ended) charts = html`<${Failure} error=${poll.error} />`;
  else if (poll.error || (poll.data && !(times?.length && values))) {
    charts = html`<${Empty} title="No measurements">
      ${ended ? "They are kept while a job runs." : "The first ones arrive within seconds."}<//>`;
  }
  return html`<section class="card" aria-label=${`The last hour of ${vertex.name}`}>
    <header>${head}</header>
    <div class="card-body charts">${charts}</div>
  </section>`;
}

function Charts({ vertex, times, values, detailed }) {
  const reads = vertex.inputs.length > 0;
  const line = (label, name, color) => ({ label, values: values?.[name], color });
  const part = (label, name, color) => ({ ...line(label, name, color), stacked: true });
  const hasLag = !values || values.watermark_lag_ms?.some(format.known);
  return html`
    <${TimeChart} title="Records per second" times=${times} show=${format.rate} series=${[
      reads && line("In", "records_in", "--chart-1"),
      line("Out", "records_out", "--chart-2"),
    ].filter(Boolean)} />
    <${TimeChart} title="Time of its tasks" times=${times} show=${format.percent} highest=${1} series=${[
      part("Busy", "busy", "--busy"),
      part("Back-pressured", "back_pressured", "--back-pressured"),
      part("Idle", "idle", "--idle"),
    ]} />
    ${hasLag
      ? html`<${TimeChart} key="lag" title="Watermark lag" times=${times} show=${format.duration}
          series=${[line("Lag", "watermark_lag_ms", "--chart-3")]} />`
      : html`<div class="chart"><div class="chart-title">Watermark lag</div>
          <${Empty} title="No watermark">The vertex has received none in this time.<//></div>`}
    ${detailed && html`
      <${TimeChart} title="Bytes per second" times=${times} show=${format.byteRate} series=${[
        reads && line("In", "bytes_in", "--chart-1"),
        line("Out", "bytes_out", "--chart-2"),
      ].filter(Boolean)} />
      <${TimeChart} title="Parts of the busy time" times=${times} show=${format.percent} highest=${1} series=${[
        part("Spark", "spark", "--chart-1"),
        part("Python", "python", "--chart-3"),
        part("Exchange", "exchange", "--chart-2"),
      ]} />
      <${TimeChart} title="Busiest subtask" times=${times} show=${format.percent} highest=${1} series=${[
        line("Busiest", "busiest", "--chart-3"),
        line("Mean", "busy", "--chart-1"),
      ]} />`}`;
}
