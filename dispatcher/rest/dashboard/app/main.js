// The dashboard: a table of pages, and the frame around them. Conventions:
//
// - No build step: browsers load these modules as they are. No inline script or style (CSP), no
//   other hosts, only relative URLs. Markup is htm (`html.js`); names from jobs are text nodes.
// - A page is a module in pages/ whose default export is a component with the props `params` (from
//   the pattern) and `query` (an object of strings). Add a row to PAGES; to appear in the
//   navigation, it has a `nav`. Pages of a job render <JobPage> (ui/job_page.js), which has the tabs.
//   Link with `href(parts, query)`; keep choices such as order, filter and selection in the query
//   (`setQuery`), so that they have a URL.
// - Data: `usePoll(path("jobs", id), {query})` (poll.js) reads a route of /firesteel/v1 every two
//   seconds while the page is visible, and keeps the last answer through failures. `get`, `post`,
//   `remove` (api.js) reject with an ApiError whose message can be shown. A 401 leads to /login.
//   `useStore(me)` is the answer of GET me, with `may`; hide what the caller may not do.
// - Show values with format.js and ui/values.js (<State>, <Time>, <Elapsed>, <Bytes>, <Tile>, ...),
//   which show null and NaN as "–"; lists with <Table>, <Pager> (ui/table.js); confirm with <Dialog>
//   (ui/dialog.js); <Loaded>, <Loading>, <Empty>, <Failure> (ui/views.js) stand in for data and
//   reserve its space, so that nothing jumps.
// - Style: app.css. Use its tokens (`var(--muted)`) and classes (card, card-body, row, stack, tiles,
//   notice tone-warn, button primary, input, field); a page's own rules go at its end. Every page
//   works at a width of 360 px and by keyboard.
import { connection, loadMe, me, remove, setWaiting } from "./api.js";
import { h, html, render, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { go, href, match, place } from "./router.js";
import { useStore } from "./store.js";
import { theme } from "./ui/theme_choice.js";
import { Failure, Loading } from "./ui/views.js";

const PAGES = [
  { pattern: "/", title: "Overview", nav: "Overview", load: () => import("./pages/overview.js") },
  { pattern: "/jobs/:job", title: "Job", load: () => import("./pages/job.js") },
  { pattern: "/jobs/:job/vertices/:vertex", title: "Vertex", load: () => import("./pages/vertex.js") },
  { pattern: "/jobs/:job/checkpoints", title: "Checkpoints", load: () => import("./pages/checkpoints.js") },
  { pattern: "/jobs/:job/exceptions", title: "Exceptions", load: () => import("./pages/exceptions.js") },
  { pattern: "/jobs/:job/logs", title: "Logs", load: () => import("./pages/logs.js") },
  { pattern: "/jobs/:job/flamegraph", title: "Flame graph", load: () => import("./pages/flamegraph.js") },
  { pattern: "/jobs/:job/rows", title: "Sample rows", load: () => import("./pages/rows.js") },
  { pattern: "/machines", title: "Machines", nav: "Machines", load: () => import("./pages/machines.js") },
  { pattern: "/savepoints", title: "Savepoints", nav: "Savepoints", load: () => import("./pages/savepoints.js") },
  { pattern: "/submit", title: "Submit", nav: "Submit", may: "submit", load: () => import("./pages/submit.js") },
  { pattern: "/audit", title: "Audit", nav: "Audit", may: "admin", load: () => import("./pages/audit.js") },
  { pattern: "/login", title: "Log in", load: () => import("./pages/login.js") },
];

const SOON_MS = 200;
const THEMES = ["auto", "light", "dark"];

function App() {
  const { path, query } = useStore(place);
  const page = findPage(path);
  const Page = usePage(page?.load);

  const opened = useRef(path);
  useLayoutEffect(() => { // before effects of the page, which may know a better title
    document.title = `${page?.title ?? "Not found"} · Firesteel`;
    if (opened.current === path) return; // the first page keeps the browser's focus
    opened.current = path;
    scrollTo(0, 0);
    document.getElementById("main").focus({ preventScroll: true });
  }, [path]);

  return html`
    <a class="skip button" href="#main" onClick=${focusMain}>Skip to the content</a>
    <${Top} path=${path} />
    <main id="main" tabindex="-1">
      ${!page && html`<h1 class="sr-only">Not found</h1><${Failure} error=${{ message: `There is no page ${path}.` }} title="Not found" />`}
      ${page && (Page?.error
    ? html`<${Failure} error=${Page.error} />`
    : Page?.component
      ? h(Page.component, { key: path, params: page.params, query })
      : html`<div class="card"><${Loading} rows=${9} /></div>`)}
    </main>
    <${Banner} />`;
}

function findPage(path) {
  for (const page of PAGES) {
    const params = match(page.pattern, path);
    if (params) return { ...page, params };
  }
  return null;
}

const modules = new Map(); // the pages that are loaded or being loaded

/** Starts to load a page's module, again if that has failed. */
function loadPage(load) {
  if (modules.has(load) && !modules.get(load).error) return modules.get(load);
  const entry = { component: null, error: null };
  entry.done = load().then(
    (module) => { entry.component = module.default; },
    (error) => { entry.error = error; },
  );
  modules.set(load, entry);
  return entry;
}

/** Returns a page's `{component, error}`; both are null until its module is loaded. */
function usePage(load) {
  const [, setLoaded] = useState(0);
  useEffect(() => {
    let gone = false;
    if (load) loadPage(load).done.then(() => gone || setLoaded((count) => count + 1));
    return () => { gone = true; };
  }, [load]);
  return modules.get(load);
}

function focusMain(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function Top({ path }) {
  const user = useStore(me);
  return html`<header class="top"><div class="top-row">
    <a class="brand" href="#/"><img src="favicon.svg" alt="" width="24" height="24" />Firesteel</a>
    <nav class="nav" aria-label="Main">${user && PAGES.filter((page) => page.nav && (!page.may || user.may[page.may])).map((page) => html`
      <a key=${page.pattern} href=${href(page.pattern.split("/").filter(Boolean))}
        aria-current=${isIn(page.pattern, path) ? "page" : undefined}>${page.nav}</a>`)}</nav>
    <div class="top-end">
      ${user && html`<div class="who">
        <div title="The cluster and its version">${user.cluster} <span class="muted">${user.version}</span></div>
        <div class="muted" title="Who is logged in, and the role">${user.name ? `${user.name} · ` : ""}${user.role}</div>
      </div>`}
      ${user?.expires_ms && html`<button type="button" class="button compact" onClick=${logOut}>Log out</button>`}
      <${ThemeSwitch} />
    </div>
  </div></header>`;
}

/** Whether the path belongs to an entry of the navigation; pages of jobs belong to the overview. */
function isIn(pattern, path) {
  if (pattern === "/") return path === "/" || path.startsWith("/jobs/");
  return path === pattern || path.startsWith(`${pattern}/`);
}

const ICONS = {
  auto: html`<svg viewBox="0 0 20 20" aria-hidden="true"><circle cx="10" cy="10" r="7" /><path d="M10 3v14a7 7 0 0 0 0-14" fill="currentColor" /></svg>`,
  light: html`<svg viewBox="0 0 20 20" aria-hidden="true"><circle cx="10" cy="10" r="3.4" /><path d="M10 2v2M10 16v2M2 10h2M16 10h2M4.3 4.3l1.4 1.4M14.3 14.3l1.4 1.4M4.3 15.7l1.4-1.4M14.3 5.7l1.4-1.4" /></svg>`,
  dark: html`<svg viewBox="0 0 20 20" aria-hidden="true"><path d="M16.5 12A7 7 0 0 1 8 3.5a7 7 0 1 0 8.5 8.5" /></svg>`,
};

function ThemeSwitch() {
  const chosen = useStore(theme);
  const next = THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length];
  const label = `Theme: ${chosen}. Switch to ${next}`;
  return html`<button type="button" class="icon-button" title=${label} aria-label=${label}
    onClick=${() => theme.set(next)}>${ICONS[chosen]}</button>`;
}

async function logOut() {
  await remove("session");
  me.set(null);
  go("#/login");
}

function Banner() {
  const error = useStore(connection);
  return html`<div aria-live="polite">${error && html`
    <div class="banner" title=${error.message}>The Dispatcher does not answer; trying again.</div>`}</div>`;
}

/** Asks who is logged in until the server answers. */
async function start() {
  if (place.get().path === "/login") return;
  try {
    await loadMe();
    setWaiting(start, null);
  } catch (error) {
    setWaiting(start, error.away ? error : null);
    if (error.away) setTimeout(start, 2000);
  }
}

if (!location.hash) go("#/", { replace: true });
start();
const first = findPage(place.get().path);
// A page that is loaded soon is painted once, with its data.
if (first) await Promise.race([loadPage(first.load).done, new Promise((resolve) => { setTimeout(resolve, SOON_MS); })]);
render(html`<${App} />`, document.getElementById("app"));
