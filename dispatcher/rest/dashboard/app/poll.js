// Hooks that keep data and times current while the page is visible.
import { ApiError, clock, get, setWaiting } from "./api.js";
import { useCallback, useLayoutEffect, useRef, useState } from "./html.js";
import { createStore, useStore } from "./store.js";

export const POLL_MS = 2000;
export const ENDED_POLL_MS = 10_000; // an ended job changes only when it is removed
const RECENT = 32; // answers that are kept for pages that are opened again
const answers = new Map();

/** Reads a route now and every `every` milliseconds while the page is visible.
 *
 * `where`: the route, or null for none. `every`: a number or a function of the last data; 0 stops.
 * Returns `{data, error, loading, refresh}`. After a failure, `data` stays the last answer, and
 * `error` is an ApiError. If the server is only away, `error` stays null, and the layout shows a
 * banner until it answers.
 */
export function usePoll(where, { query, every = POLL_MS } = {}) {
  const key = where === null ? null : `${where}?${JSON.stringify(query ?? {})}`;
  const initial = () => ({ key, data: answers.get(key) ?? null, error: null });
  const [state, setState] = useState(initial);
  const every_ = useRef(every);
  every_.current = every;
  const wake = useRef(() => {});

  useLayoutEffect(() => { // before the browser paints, so that the request starts early
    if (key === null) return undefined;
    setState((last) => (last.key === key ? last : initial()));
    const controller = new AbortController();
    let timer = 0;
    let busy = false;
    let data = answers.get(key) ?? null;

    async function poll() {
      clearTimeout(timer);
      if (busy || controller.signal.aborted || document.hidden) return;
      busy = true;
      let wait;
      try {
        data = await get(where, { query, signal: controller.signal });
        setWaiting(poll, null);
        keep(key, data);
        setState({ key, data, error: null });
      } catch (error) {
        if (controller.signal.aborted) return;
        if (!(error instanceof ApiError)) throw error;
        setWaiting(poll, error.away ? error : null);
        setState((last) => ({ ...last, key, error: error.away ? null : error }));
        if (error.status === 401) return;
        wait = error.away ? POLL_MS : 5 * POLL_MS;
      } finally {
        busy = false;
      }
      wait ??= typeof every_.current === "function" ? every_.current(data) : every_.current;
      if (wait > 0) timer = setTimeout(poll, wait);
    }

    wake.current = poll;
    document.addEventListener("visibilitychange", poll);
    poll();
    return () => {
      controller.abort();
      setWaiting(poll, null);
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", poll);
    };
  }, [key]);

  const refresh = useCallback(() => wake.current(), []);
  // The first render after a change of the route must not show the answer of the previous route.
  const { data, error } = state.key === key ? state : initial();
  return { data, error, loading: key !== null && data === null && error === null, refresh };
}

function keep(key, data) {
  answers.delete(key);
  answers.set(key, data);
  if (answers.size > RECENT) answers.delete(answers.keys().next().value);
}

/** The time by the server's clock, in milliseconds. */
export function serverNow() {
  return Date.now() + clock.get();
}

const seconds = createStore(serverNow());
setInterval(() => document.hidden || seconds.set(serverNow()), 1000);

/** Renders the component every second, and returns the time by the server's clock. */
export function useNow() {
  useStore(seconds);
  return serverNow();
}
