// What a page shows while it has no data.
import { html } from "../html.js";

/** Reserves the space of `rows` lines. */
export function Loading({ rows = 5 }) {
  return html`<div class="skeleton" role="status" aria-label="Loading">
    ${Array.from({ length: rows }, (_, index) => html`<i key=${index} />`)}
  </div>`;
}

export function Empty({ title, children }) {
  return html`<div class="state-view"><strong>${title}</strong>${children && html`<div>${children}</div>`}</div>`;
}

export function Failure({ error, title }) {
  const what = title ?? (error.status === 404 ? "Not found" : error.status === 403 ? "Not allowed" : "This cannot be shown");
  return html`<div class="state-view error" role="alert">
    <strong>${what}</strong><div class="wrap">${error.message}</div>
  </div>`;
}

/** Shows the children once a poll has data: `children` is a function of the data. */
export function Loaded({ poll, rows, children }) {
  if (poll.error && !poll.data) return html`<${Failure} error=${poll.error} />`;
  if (!poll.data) return html`<${Loading} rows=${rows} />`;
  return children(poll.data);
}
