// Requests to /firesteel/v1, relative to the page, so that the dashboard works behind a prefix.
//
// A failed request rejects with an ApiError, whose `message` is the server's and can be shown.
// `connection` is what the server says while it cannot answer: the layout shows a banner.
import { createStore } from "./store.js";

const BASE = new URL("firesteel/v1/", document.baseURI);
const TIMEOUT_MS = 15_000;
const OPERATION_POLL_MS = 500;
const EARLY_MS = 5000; // a page that was opened in the background reads its data when it is shown
const AWAY = new Set([502, 503, 504]); // no Dispatcher leads, or the one that led is gone

export const connection = createStore(null); // an ApiError while requests are repeated, else null
export const me = createStore(null); // the answer of GET me; null until it is known
export const refusal = createStore(""); // why the last request needs a log-in
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
export function post(where, body = {}, { signal, timeout } = {}) {
  return request("POST", where, { body, signal, timeout });
}

export function remove(where, { signal } = {}) {
  return request("DELETE", where, { signal });
}

function address(where, query) {
  const url = new URL(where, BASE);
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

async function request(method, where, { query, body, signal, timeout }) {
  const form = body instanceof FormData;
  const limit = AbortSignal.timeout(timeout ?? (form ? 10 * TIMEOUT_MS : TIMEOUT_MS));
  const options = { method, signal: signal ? AbortSignal.any([signal, limit]) : limit };
  if (body !== undefined) {
    options.body = form ? body : JSON.stringify(body);
    if (!form) options.headers = { "Content-Type": "application/json" };
  }
  const { response, text } = await answered(where, query, options, signal, (answer) => answer.text());
  const answer = parse(text);
  if (!response.ok) throw failure(response, answer);
  if (typeof answer?.now_ms === "number") clock.set(answer.now_ms - Date.now());
  return answer;
}

/** Waits for the operation that an action has started; returns its result. */
export async function outcome(action) {
  const { operation } = await action;
  for (;;) {
    const { done, result, error } = await get(path("operations", operation));
    if (error) throw new ApiError(409, error);
    if (done) return result;
    await new Promise((resolve) => { setTimeout(resolve, OPERATION_POLL_MS); });
  }
}

/** Reads server-sent events until the server ends them. `onData` is called with lists of values. Rejects
 * with an ApiError that is `away` if the server says that it cannot continue.
 */
export async function stream(where, { query, signal, onOpen, onData }) {
  const { response, text } = await answered(where, query, { signal }, signal,
    (answer) => (answer.ok ? null : answer.text()));
  if (!response.ok) throw failure(response, parse(text));
  onOpen?.();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch((error) => { throw broken(error, signal); });
    if (done) return;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    const away = events.find((event) => event.startsWith("event: away"));
    if (away) throw new ApiError(503, parse(away.split("data: ")[1])?.errors?.join("\n") ?? "The Dispatcher is away.");
    const values = events.filter((event) => event.startsWith("data:")).map((event) => JSON.parse(event.slice(5)));
    if (values.length) onData(values);
  }
}

async function answered(where, query, options, signal, read) {
  try {
    const url = address(where, query);
    const response = await (sentEarly(url, options) ?? fetch(url, { credentials: "same-origin", cache: "no-store", ...options }));
    return { response, text: await read(response) };
  } catch (error) {
    throw broken(error, signal);
  }
}

/** Takes the answer to a request of early.js, while it is new, or returns undefined. */
function sentEarly({ href }, { method = "GET" }) {
  const isNew = method === "GET" && performance.now() < EARLY_MS;
  const answer = isNew ? globalThis.early?.get(href) : undefined;
  globalThis.early?.delete(href);
  return answer;
}

function broken(error, signal) {
  if (signal?.aborted) return error; // the page was left
  return new ApiError(0, `The Dispatcher does not answer: ${error.message ?? error}`);
}

function failure(response, answer) {
  const message = answer?.errors?.join("\n") || `${response.status} ${response.statusText}`;
  if (response.status === 401) toLogin(message);
  return new ApiError(response.status, message);
}

function parse(text) {
  if (!text) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null; // a proxy's page, for example
  }
}

function toLogin(message) {
  me.set(null);
  refusal.set(message);
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
