// Submits a program: a Python file, or a package that `firesteel package` builds.
import { me, post } from "../api.js";
import { html, useState } from "../html.js";
import { go, href } from "../router.js";
import { useStore } from "../store.js";
import { Empty } from "../ui/views.js";

const TIMEOUT_MS = 600_000;

export default function Submit({ query }) {
  const user = useStore(me);
  const [error, setError] = useState("");
  const [pending, setPending] = useState(false);
  if (!user) return null;

  async function submit(event) {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    setPending(true);
    setError("");
    try {
      const body = new FormData();
      body.set("arguments", JSON.stringify(words(form.get("arguments"))));
      body.set("options", JSON.stringify(definitions(form)));
      if (form.get("savepoint").trim()) body.set("savepoint", form.get("savepoint").trim());
      body.set("program", form.get("program"));
      const { job_id: id } = await post("jobs", body, { timeout: TIMEOUT_MS });
      go(href(["jobs", id]));
    } catch (failure) {
      setError(failure.message);
      setPending(false);
    }
  }

  return html`<h1>Submit a program</h1>
    <section class="card narrow" aria-label="Program">
    ${!user.may.submit ? html`<${Empty} title="Not allowed">Your role, ${user.role}, may not submit programs, or the cluster does not allow it (web.submit.enable).<//>`
    : html`<form class="card-body stack" onSubmit=${submit}>
      <div class="notice tone-warn"><strong>The program runs as the user of the cluster.</strong> It can read and change all that this user can.</div>
      <label class="field"><span>Program</span><input class="input" type="file" name="program" accept=".py,.zip" required />
        <small>A .py file that calls <code>env.execute()</code>, or the .zip that <code>firesteel package</code> builds.</small></label>
      <label class="field"><span>Arguments</span><input class="input mono" name="arguments" placeholder="--input /data/orders.csv" spellcheck=${false} />
        <small>As on a command line; quote values with spaces.</small></label>
      <label class="field"><span>Parallelism</span><input class="input subtask" type="number" min="1" name="parallelism" placeholder="default" /></label>
      <label class="field"><span>Start from</span><input class="input mono" name="savepoint" defaultValue=${query.savepoint ?? ""} placeholder="no savepoint" spellcheck=${false} />
        <small>The path of a savepoint or a retained checkpoint.</small></label>
      <label class="field"><span>Options</span><textarea class="input mono" name="options" rows="3" placeholder="execution.checkpointing.interval: 10 s" spellcheck=${false} />
        <small>One <code>key: value</code> per line.</small></label>
      ${error && html`<div class="notice tone-bad" role="alert"><pre class="wrap">${error}</pre></div>`}
      <div class="row"><button type="submit" class="button primary" disabled=${pending}>${pending ? "Submitting…" : "Submit"}</button>
        ${pending && html`<span class="muted" role="status">The program runs until it has submitted its job.</span>`}</div>
    </form>`}
    </section>`;
}

/** Splits a command line: quotes hold words together. */
export function words(text) {
  return [...text.matchAll(/"([^"]*)"|'([^']*)'|(\S+)/g)].map(([, double, single, bare]) => double ?? single ?? bare);
}

function definitions(form) {
  const lines = form.get("options").split("\n").filter((line) => line.trim());
  const pairs = lines.map((line) => {
    const at = line.indexOf(":");
    if (at < 1) throw new Error(`“${line.trim()}” is not “key: value”.`);
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  });
  if (form.get("parallelism")) pairs.push(["parallelism.default", form.get("parallelism")]);
  return Object.fromEntries(pairs);
}
