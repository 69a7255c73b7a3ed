// Runs before the first paint, and before the modules are loaded: applies the chosen theme, and
// requests what the first page shows. A classic script, so that nothing flashes or waits.
document.documentElement.dataset.theme = localStorage.getItem("firesteel.theme") || "auto";

const [where, query] = location.hash.slice(1).split("?");
const job = /^\/jobs\/([0-9a-f]{32})(?:\/vertices\/([0-9a-f]{32}))?$/.exec(where);

/** Answers that are on their way, by address; api.js takes each instead of sending its request. */
globalThis.early = new Map();
if (job) {
  const [, id, vertex] = job;
  const routes = ["me", `jobs/${id}`];
  if (vertex && !query) routes.push(`jobs/${id}/vertices/${vertex}?offset=0&limit=20`);
  for (const route of routes) {
    const { href } = new URL(`firesteel/v1/${route}`, document.baseURI);
    const answer = fetch(href, { credentials: "same-origin", cache: "no-store" });
    answer.catch(() => {}); // who takes it says so
    early.set(href, answer);
  }
  const parts = vertex ? ["app/pages/vertex.js"] : ["app/pages/job.js", "app/graph/graph.js", "app/graph/layout.js", "vendor/dagre.js"];
  for (const part of parts) {
    document.head.append(Object.assign(document.createElement("link"), { rel: "modulepreload", href: part }));
  }
}
