// The last hour of a vertex.
import { path } from "../api.js";
import * as format from "../format.js";
import { html } from "../html.js";
import { usePoll } from "../poll.js";
import { TimeChart } from "./chart.js";
import { ENDED } from "./values.js";
import { Empty, Failure } from "./views.js";

const POINTS = 240;
const POLL_MS = 6000;

/** `head`: what stands in the card's header. */
export function VertexCharts({ job, vertex, head }) {
  const poll = usePoll(path("jobs", job.id, "series"), {
    query: { vertex: vertex.id, points: POINTS },
    every: ENDED.has(job.status) ? 0 : POLL_MS,
  });
  const values = poll.data?.vertices?.[vertex.id];
  const known = (name) => values?.[name]?.some(format.known);
  const empty = poll.data && !(poll.data.times?.length && values);
  return html`<section class="card" aria-label=${`The last hour of ${vertex.name}`}>
    <header>${head}</header>
    <div class="card-body charts">${
      poll.error
        ? html`<${Failure} error=${poll.error} />`
        : empty
          ? html`<${Empty} title="No measurements">
            ${ENDED.has(job.status) ? "They are kept while a job runs." : "The first ones arrive within seconds."}<//>`
          : html`
      <${TimeChart} title="Records per second" times=${poll.data?.times} show=${format.rate} series=${[
        vertex.inputs.length > 0 && { label: "In", values: values?.records_in, color: "--chart-1" },
        { label: "Out", values: values?.records_out, color: "--chart-2" },
      ].filter(Boolean)} />
      <${TimeChart} title="Time of its tasks" times=${poll.data?.times} show=${format.percent} highest=${1} series=${[
        { label: "Busy", values: values?.busy, color: "--busy", stacked: true },
        { label: "Back-pressured", values: values?.back_pressured, color: "--back-pressured", stacked: true },
        { label: "Idle", values: values?.idle, color: "--idle", stacked: true },
      ]} />
      ${
        known("watermark_lag_ms") || !values
          ? html`
        <${TimeChart} key="lag" title="Watermark lag" times=${poll.data?.times} show=${format.duration} series=${[
          { label: "Lag", values: values?.watermark_lag_ms, color: "--chart-3" },
        ]} />`
          : html`<div class="chart"><div class="chart-title">Watermark lag</div>
          <${Empty} title="No watermark">The vertex has not received one in this time.<//></div>`
      }`
    }</div>
  </section>`;
}
