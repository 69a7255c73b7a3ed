// The audit log: who has changed something, or was refused.
import * as format from "../format.js";
import { html } from "../html.js";
import { usePoll } from "../poll.js";
import { href, setQuery } from "../router.js";
import { Table } from "../ui/table.js";
import { Label, Time } from "../ui/values.js";
import { Empty, Loaded } from "../ui/views.js";

const LIMITS = [100, 1000, 10_000];

export default function Audit({ query }) {
  const limit = Number(query.limit) || LIMITS[0];
  const poll = usePoll("audit", { query: { limit }, every: 5000 });
  const wanted = (query.text ?? "").toLowerCase();
  const matches = (record) => Object.values(record).some((value) => String(value).toLowerCase().includes(wanted));
  return html`<h1>Audit</h1><section class="card" aria-label="Audit log">
    <header><span class="muted">Actions of people, and calls that were refused; the newest first</span>
      <input class="input push" type="search" aria-label="Search" placeholder="Search" value=${query.text ?? ""} onInput=${({ currentTarget }) => setQuery({ text: currentTarget.value })} />
      <label class="row"><span>Last</span><select class="input" onChange=${({ currentTarget }) => setQuery({ limit: currentTarget.value })}>
        ${LIMITS.map((count) => html`<option key=${count} value=${count} selected=${count === limit}>${format.exactCount(count)}</option>`)}</select></label></header>
    <${Loaded} poll=${poll} rows=${10}>${({ records }) => html`<${Table} caption="Audit log" rows=${records.filter(matches)} rowKey=${(record, index) => index} columns=${COLUMNS}
      empty=${html`<${Empty} title="No records" />`} />`}<//>
  </section>`;
}

const COLUMNS = [
  { key: "time", title: "Time", cell: ({ time_ms: ms }) => html`<${Time} ms=${ms} />` },
  { key: "subject", title: "Who", cell: ({ subject, role }) => html`${subject || html`<span class="muted">unknown</span>`} <span class="muted small">${role}</span>` },
  { key: "action", title: "Action", cell: ({ action }) => html`<code>${action}</code>` },
  { key: "job", title: "Job", wide: true, cell: ({ job_id: id }) => (id ? html`<a class="mono" href=${href(["jobs", id])} title=${id}>${format.shortId(id)}</a>` : "") },
  { key: "outcome", title: "Outcome", cell: ({ outcome }) => html`<${Label} tone=${outcome === "OK" ? "ok" : "bad"}>${outcome}<//>` },
  { key: "address", title: "From", wide: true, cell: ({ address }) => html`<span class="mono small">${address}</span>` },
];
