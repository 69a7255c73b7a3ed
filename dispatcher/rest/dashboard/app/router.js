// Hash routes: `#/jobs/ID/vertices/ID?sort=busy`. Every page has a URL.
import { createStore } from "./store.js";

function read() {
  const [pathname, search = ""] = (location.hash.slice(1) || "/").split("?", 2);
  return { path: pathname, query: Object.fromEntries(new URLSearchParams(search)) };
}

export const place = createStore(read());
addEventListener("hashchange", () => place.set(read()));

/** The hash of a page. Parts are escaped; unknown values of `query` are left out. */
export function href(parts, query = {}) {
  const pathname = parts.map((part) => encodeURIComponent(part)).join("/");
  const search = new URLSearchParams(
    Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== ""),
  ).toString();
  return `#/${pathname}${search ? `?${search}` : ""}`;
}

/** Opens a page. With `replace`, the back button skips the page that is left. */
export function go(hash, { replace = false } = {}) {
  if (replace) {
    history.replaceState(null, "", hash);
    place.set(read());
  } else {
    location.hash = hash;
  }
}

/** Changes values of the page's query, for example the order of a table. */
export function setQuery(changes) {
  const { path, query } = place.get();
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  go(href(parts, { ...query, ...changes }), { replace: true });
}

/** Returns the parameters if the path has the pattern (`/jobs/:job`), else null. */
export function match(pattern, pathname) {
  const expected = pattern.split("/");
  const actual = pathname.split("/");
  if (expected.length !== actual.length) return null;
  const params = {};
  for (const [index, part] of expected.entries()) {
    if (part.startsWith(":")) {
      try {
        params[part.slice(1)] = decodeURIComponent(actual[index]);
      } catch {
        return null; // not a valid escape
      }
    } else if (part !== actual[index]) return null;
  }
  return params;
}
