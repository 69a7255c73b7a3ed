// Logs the browser in: with a one-time code in the address, or with a token that is typed in.
import { loadMe, post, refusal } from "../api.js";
import { html, useEffect, useState } from "../html.js";
import { go } from "../router.js";
import { useStore } from "../store.js";
import { Loading } from "../ui/views.js";

export default function Login({ query }) {
  const reason = useStore(refusal);
  const [error, setError] = useState("");
  const [pending, setPending] = useState(Boolean(query.code));
  const next = `#${query.next?.startsWith("/") ? query.next : "/"}`;

  async function logIn(credential) {
    setPending(true);
    setError("");
    try {
      await post("session", credential);
      refusal.set("");
      await loadMe();
      go(next, { replace: true });
    } catch (failure) {
      setError(failure.message);
      setPending(false);
    }
  }

  useEffect(() => {
    if (!query.code) return;
    go(`#/login?next=${encodeURIComponent(next.slice(1))}`, { replace: true }); // the code is used
    logIn({ code: query.code });
  }, []);

  function submit(event) {
    event.preventDefault();
    logIn({ token: new FormData(event.currentTarget).get("token").trim() });
  }

  return html`<div class="login card">
    <header><h1 tabindex="-1">Log in</h1></header>
    ${pending ? html`<${Loading} rows=${4} />` : html`<form class="card-body stack" onSubmit=${submit}>
      ${(error || reason) && html`<div class="notice tone-bad wrap" role="alert">${error || reason}</div>`}
      <p>On a machine that has the keys of this cluster, <code>firesteel dashboard</code> opens this
        page and logs you in.</p>
      <label class="field"><span>Token</span>
        <input class="input mono" name="token" type="password" required autofocus autocomplete="off" spellcheck=${false} />
        <small>An administrator creates one: <code>firesteel token create NAME --role viewer</code></small>
      </label>
      <div><button type="submit" class="button primary">Log in</button></div>
    </form>`}
  </div>`;
}
