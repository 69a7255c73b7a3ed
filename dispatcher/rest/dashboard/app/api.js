// Requests to /firesteel/v1, relative to the page, so that the dashboard works behind a prefix.
//
// A failed request rejects with an ApiError, whose `message` is the server's and can be shown.
// `connection` is what the server says while it cannot answer: the layout shows a banner.
import { createStore } from "./store.js";

const BASE = new URL("firesteel/v1/", document.baseURI);
const TIMEOUT_MS = 15_000;
const AWAY = new Set([502, 503, 504]); // no Dispatcher leads, or the one that led is gone

export const connection = createStore(null); // an ApiError while requests are repeated, else null
export const me = createStore(null); // the answer of GET me; null until it is known
export const clock = createStore(0); // the server's time minus this machine's, in milliseconds

export class ApiError extends Error {
  /** `status`: of HTTP; 0 if the server did not answer. */
  constructor(status, message) {
    super(message);
    this.status = status;
  }

  /** Whether the same request may succeed a little later. */
  get away() {
    return this.status === 0 || AWAY.has(this.status);
  }
}

/** Joins parts of a path; each is escaped. `path("jobs", id)` is `jobs/…`. */
export function path(...parts) {
  return parts.map((part) => encodeURIComponent(part)).join("/");
}

export function get(where, { query, signal } = {}) {
  return request("GET", where, { query, signal });
}

/** `body`: a value that is sent as JSON, or a FormData. */
export function post(where, body = {}, { signal } = {}) {
  return request("POST", where, { body, signal });
}

export function remove(where, { signal } = {}) {
  return request("DELETE", where, { signal });
}

/** The full address of a route, for links and EventSource. */
export function address(where, query) {
  const url = new URL(where, BASE);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

async function request(method, where, { query, body, signal }) {
  const form = body instanceof FormData;
  const timeout = AbortSignal.timeout(form ? 10 * TIMEOUT_MS : TIMEOUT_MS);
  const options = {
    method,
    credentials: "same-origin",
    cache: "no-store",
    signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
  };
  if (body !== undefined) {
    options.body = form ? body : JSON.stringify(body);
    if (!form) options.headers = { "Content-Type": "application/json" };
  }
  let response;
  let text;
  try {
    response = await fetch(address(where, query), options);
    text = await response.text();
  } catch (error) {
    if (signal?.aborted) throw error; // the page was left
    throw new ApiError(0, `The Dispatcher does not answer: ${error.message ?? error}`);
  }
  const answer = parse(text);
  if (!response.ok) {
    const message = answer?.errors?.join("\n") || `${response.status} ${response.statusText}`;
    if (response.status === 401) toLogin();
    throw new ApiError(response.status, message);
  }
  if (typeof answer?.now_ms === "number") clock.set(answer.now_ms - Date.now());
  return answer;
}

function parse(text) {
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null; // a proxy's page, for example
  }
}

function toLogin() {
  me.set(null);
  const here = location.hash.slice(1) || "/";
  if (!here.startsWith("/login")) location.hash = `/login?next=${encodeURIComponent(here)}`;
}

/** Reads who is logged in. */
export async function loadMe() {
  me.set(await get("me"));
}

const waiting = new Map(); // requests that are repeated, with their errors

/** Sets the error of a request that is repeated; null once it succeeds or is given up. */
export function setWaiting(request, error) {
  if (error) waiting.set(request, error);
  else waiting.delete(request);
  connection.set([...waiting.values()].at(-1) ?? null);
}
