// Small parts that show one value: states, times, bars.
import * as format from "../format.js";
import { html } from "../html.js";
import { useNow } from "../poll.js";

// The tone of each state of jobs, tasks, checkpoints and slots.
const TONES = {
  RUNNING: "ok", COMPLETED: "done", FINISHED: "done",
  FAILED: "bad", FAILING: "bad",
  RESTARTING: "warn", CANCELLING: "warn", CANCELING: "warn", SUSPENDED: "warn", RECONCILING: "warn",
};
const MOVING = new Set([
  "INITIALIZING", "CREATED", "SCHEDULED", "DEPLOYING", "FAILING", "RESTARTING", "CANCELLING",
  "CANCELING", "RECONCILING", "IN_PROGRESS",
]);
export const ENDED = new Set(["FINISHED", "CANCELED", "FAILED"]);
const ORDER = [
  "RUNNING", "INITIALIZING", "DEPLOYING", "SCHEDULED", "CREATED", "RECONCILING", "CANCELING",
  "FINISHED", "CANCELED", "FAILED",
];

/** A state of a job, task or checkpoint. */
export function State({ name, count }) {
  const classes = `badge tone-${TONES[name] ?? "still"}${MOVING.has(name) ? " moving" : ""}`;
  return html`<span class=${classes}>${count === undefined ? "" : `${format.exactCount(count)} `}${name}</span>`;
}

/** Numbers of tasks by state, `{RUNNING: 3}`; `compact` shows the names of states in tooltips only. */
export function Tasks({ tasks, compact = false }) {
  const states = Object.entries(tasks ?? {}).filter(([, count]) => count > 0)
    .sort(([a], [b]) => ORDER.indexOf(a) - ORDER.indexOf(b));
  if (!states.length) return html`<span class="muted">${format.UNKNOWN}</span>`;
  return html`<span class="tasks">${states.map(([name, count]) => (compact
    ? html`<${Label} key=${name} tone=${TONES[name]} title=${name}>${format.count(count)}<span class="sr-only"> ${name}</span><//>`
    : html`<${State} key=${name} name=${name} count=${count} />`))}</span>`;
}

/** A short label with a tone: ok, done, bad, warn or still. */
export function Label({ tone = "still", title, children }) {
  return html`<span class=${`badge plain tone-${tone}`} title=${title}>${children}</span>`;
}

/** A time in the viewer's zone; the tooltip has it in ISO 8601. */
export function Time({ ms, now }) {
  const iso = format.isoTime(ms);
  if (!iso) return format.UNKNOWN;
  return html`<time class="nowrap" datetime=${iso} title=${iso}>${format.time(ms, now)}</time>`;
}

/** The time from `start` to `end`, or until now by the server's clock, counting up. */
export function Elapsed({ start, end }) {
  if (!format.known(start) || start <= 0) return format.UNKNOWN;
  if (!end) return html`<${CountingUp} start=${start} />`;
  return html`<span class="nowrap">${format.duration(end - start)}</span>`;
}

function CountingUp({ start }) {
  return html`<span class="nowrap">${format.runningTime(useNow() - start)}</span>`;
}

export function Bytes({ value }) {
  const exact = format.known(value) ? `${format.exactCount(value)} bytes` : undefined;
  return html`<span class="nowrap" title=${exact}>${format.bytes(value)}</span>`;
}

export function Count({ value }) {
  const exact = format.known(value) && value >= 10_000 ? format.exactCount(value) : undefined;
  return html`<span class="nowrap" title=${exact}>${format.count(value)}</span>`;
}

/** Shares of a whole: `parts` is a list of `{share, name, label}`; `name` is a CSS class. */
export function Shares({ parts, label }) {
  const text = parts.map((part) => `${part.label} ${format.percent(part.share)}`).join(", ");
  const title = label ? `${label}: ${text}` : text;
  return html`<div class="shares" role="img" aria-label=${title} title=${title}>
    ${parts.map((part) => html`<i key=${part.name} class=${part.name}
      style=${{ width: `${100 * format.within(part.share)}%` }} />`)}
  </div>`;
}

/** The busy, back-pressured and idle shares of a task or vertex. */
export function TimeShares({ time }) {
  return html`<${Shares} parts=${[
    { name: "busy", label: "busy", share: time?.busy },
    { name: "back-pressured", label: "back-pressured", share: time?.back_pressured },
    { name: "idle", label: "idle", share: time?.idle },
  ]} />`;
}

export const TIME_LEGEND = html`<ul class="legend" aria-label="Colours">
  <li><i class="swatch busy" />busy</li>
  <li><i class="swatch back-pressured" />back-pressured</li>
  <li><i class="swatch idle" />idle</li>
</ul>`;

/** Whether one subtask receives much more than an even share of the records. */
export function isSkewed({ skew, parallelism }) {
  return format.known(skew?.share) && skew.share * parallelism > UNEVEN;
}

const UNEVEN = 1.5; // times an even share

/** One number of a page's head. `note` is a line below it. */
export function Tile({ label, value, note, title, children }) {
  return html`<div class="tile" title=${title}>
    <div class="label">${label}</div>
    <div class="value">${value}</div>
    ${note !== undefined && html`<div class="note clip">${note}</div>`}
    ${children}
  </div>`;
}
