// A dialog that confirms one action and states its effect.
import { html, useEffect, useRef, useState } from "../html.js";

/** Stays open, with the error, if `onConfirm` (async) rejects; else `onClose` is called.
 *
 * `children` state the effect and may contain inputs; `danger` colours the button of actions that
 * cannot be undone. Escape and Cancel close it.
 */
export function Dialog({ title, confirm, danger = false, onConfirm, onClose, children }) {
  const dialog = useRef(null);
  const [pending, setPending] = useState(false);
  const [error, setError] = useState("");

  useEffect(() => {
    dialog.current.showModal();
    return () => dialog.current?.close();
  }, []);

  async function submit(event) {
    event.preventDefault();
    setPending(true);
    setError("");
    try {
      await onConfirm(new FormData(event.currentTarget));
      onClose();
    } catch (failure) {
      setError(failure.message);
      setPending(false);
    }
  }

  return html`<dialog ref=${dialog} aria-labelledby="dialog-title" onCancel=${onClose}>
    <form onSubmit=${submit}>
      <h2 id="dialog-title">${title}</h2>
      <div class="stack">${children}</div>
      ${error && html`<div class="notice tone-bad wrap" role="alert">${error}</div>`}
      <div class="buttons">
        <button type="button" class="button" onClick=${onClose}>Cancel</button>
        <button type="submit" class=${`button ${danger ? "danger" : "primary"}`} disabled=${pending}>
          ${pending ? "Working…" : confirm}
        </button>
      </div>
    </form>
  </dialog>`;
}
