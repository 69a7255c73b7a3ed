// What a person may do with a job: cancel, stop, take a savepoint, restore, remove.
import { me, outcome, path, post, remove } from "../api.js";
import { html, useState } from "../html.js";
import { go, href } from "../router.js";
import { useStore } from "../store.js";
import { Dialog } from "./dialog.js";
import { ENDED } from "./values.js";

/** `onDone` is called after an action, with what it did as text, or "". */
export function JobActions({ job, onDone }) {
  const user = useStore(me);
  const [asking, setAsking] = useState(null);
  if (!user) return null;
  const jobAt = (...parts) => path("jobs", job.id, ...parts);
  const actions = ENDED.has(job.status)
    ? [
      { name: "Remove", may: user.may.cancel, danger: true, effect: "Deletes the job from the cluster's list, with its results, logs and retained checkpoints. Savepoints remain.",
        run: async () => { await remove(jobAt()); go(href([])); return ""; } },
    ]
    : [
      { name: "Savepoint", may: user.may.savepoint, directory: true, effect: "Writes the state of the job into a new directory. The job keeps running.",
        run: async (form) => saved(await outcome(post(jobAt("savepoints"), { directory: form.get("directory") }))) },
      { name: "Stop", may: user.may.savepoint, directory: true, drain: true, effect: "Sources stop reading, a savepoint is taken, and the job ends FINISHED. If the savepoint fails, the job keeps running.",
        run: async (form) => saved(await outcome(post(jobAt("stop"), { directory: form.get("directory"), drain: form.has("drain") }))) },
      { name: "Cancel", may: user.may.cancel, danger: true, effect: "Ends the job now, without a savepoint. What it has processed since its last checkpoint is lost.",
        run: async () => { await post(jobAt("cancel")); return ""; } },
    ];
  const reason = `Your role, ${user.role}, may not do this.`;
  const chosen = actions.find(({ name }) => name === asking);
  return html`<div class="row actions" role="group" aria-label="Actions">
    ${actions.map(({ name, may, danger }) => html`<button key=${name} type="button" class=${`button compact${danger ? " danger-text" : ""}`}
      disabled=${!may} title=${may ? undefined : reason} onClick=${() => setAsking(name)}>${name}</button>`)}
    ${actions.some(({ may }) => !may) && html`<span class="muted small">${user.role}: some actions are not allowed</span>`}
    ${chosen && html`<${Dialog} title=${`${chosen.name === "Savepoint" ? "Take a savepoint of" : chosen.name} “${job.name}”?`} danger=${chosen.danger}
      confirm=${chosen.name === "Savepoint" ? "Take savepoint" : chosen.name === "Stop" ? "Stop with savepoint" : `${chosen.name} job`}
      onConfirm=${async (form) => onDone(await chosen.run(form))} onClose=${() => setAsking(null)}>
      <p>${chosen.effect}</p>
      ${chosen.directory && html`<label class="field"><span>Directory</span>
        <input class="input mono" name="directory" placeholder="execution.checkpointing.savepoint-dir" spellcheck=${false} />
        <small>A path or URI that all processes of the cluster reach. Empty: the configured one.</small></label>`}
      ${chosen.drain && html`<label class="check"><input type="checkbox" name="drain" /><span>Drain: end the sources for good, so that windows fire.
        A job that starts from the savepoint reads nothing more.</span></label>`}
    <//>`}
  </div>`;
}

function saved(result) {
  return result?.path ? `Savepoint completed: ${result.path}` : "Savepoint completed.";
}
