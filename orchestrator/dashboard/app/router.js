// Pages by URL, with the History API: every state is a URL.
//
// Owns the table of pages and the present place. Never loads or shows a page: `shell.js` does.

import { signal } from "@preact/signals";

/**
 * A page: `name` is its key in the texts; pages with `isListed` are in the navigation, those with `isForAdmins` in that of admins.
 * `up` is the page to which Esc goes back.
 * @typedef {{ path: string, name: string, isListed?: boolean, isForAdmins?: boolean, up?: string, load: () => Promise<PageModule> }} Route
 * @typedef {{ default: import("preact").ComponentType<any>, title: string }} PageModule
 * @typedef {{ route: Route | null, params: Record<string, string>, path: string, query: URLSearchParams }} Place
 */

/** All pages, in the order of the navigation. In a path, `:name` is one part and `*name` is the rest. @type {Route[]} */
export const routes = [
  { path: "/", name: "now", isListed: true, load: () => import("./pages/now.js") },
  { path: "/jobs", name: "jobs", isListed: true, load: () => import("./pages/jobs.js") },
  { path: "/jobs/new", name: "newJob", up: "/jobs", load: () => import("./pages/new_job.js") },
  { path: "/jobs/:id", name: "job", up: "/jobs", load: () => import("./pages/job.js") },
  { path: "/jobs/:id/:tab", name: "job", up: "/jobs", load: () => import("./pages/job.js") },
  { path: "/jobs/:id/changes/*path", name: "job", up: "/jobs", load: () => import("./pages/job.js") },
  { path: "/jobs/:id/files/*path", name: "job", up: "/jobs", load: () => import("./pages/job.js") },
  { path: "/inbox", name: "inbox", isListed: true, load: () => import("./pages/inbox.js") },
  { path: "/inbox/gates/:id", name: "gate", up: "/inbox", load: () => import("./pages/gate.js") },
  { path: "/routines", name: "routines", isListed: true, load: () => import("./pages/routines.js") },
  { path: "/routines/new", name: "editRoutine", up: "/routines", load: () => import("./pages/edit_routine.js") },
  { path: "/routines/schedule", name: "schedule", up: "/routines", load: () => import("./pages/schedule.js") },
  { path: "/routines/:id", name: "routine", up: "/routines", load: () => import("./pages/routine.js") },
  { path: "/routines/:id/edit", name: "editRoutine", up: "/routines/:id", load: () => import("./pages/edit_routine.js") },
  { path: "/runs", name: "runs", up: "/routines", load: () => import("./pages/runs.js") },
  { path: "/runs/:id", name: "run", up: "/runs", load: () => import("./pages/run.js") },
  { path: "/chat", name: "chat", isListed: true, load: () => import("./pages/chat.js") },
  { path: "/chat/:thread", name: "chat", up: "/chat", load: () => import("./pages/chat.js") },
  { path: "/memory", name: "memory", isListed: true, load: () => import("./pages/memory.js") },
  { path: "/memory/*path", name: "memory", up: "/memory", load: () => import("./pages/memory.js") },
  { path: "/usage", name: "usage", isListed: true, load: () => import("./pages/usage.js") },
  { path: "/settings", name: "settings", isListed: true, load: () => import("./pages/settings.js") },
  { path: "/settings/:tab", name: "settings", load: () => import("./pages/settings.js") },
  { path: "/admin", name: "admin", isListed: true, isForAdmins: true, load: () => import("./pages/admin.js") },
  { path: "/admin/:tab", name: "admin", up: "/admin", load: () => import("./pages/admin.js") },
  { path: "/login", name: "login", load: () => import("./pages/login.js") },
];

/** @param {string} text */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // Not UTF-8, as a file's name may be.
  }
}

/**
 * The values of a pattern's names in a path, or null if it is another path.
 * @param {string} pattern @param {string} path
 */
export function match(pattern, path) {
  /** @type {Record<string, string>} */
  const params = {};
  const [names, parts] = [pattern.split("/"), path.replace(/(.)\/$/, "$1").split("/")];
  for (const [index, name] of names.entries()) {
    if (name.startsWith("*")) {
      params[name.slice(1)] = parts.slice(index).map(decode).join("/");
      return parts.length > index ? params : null;
    }
    const part = parts[index];
    if (part === undefined) return null;
    if (name.startsWith(":") && part !== "") params[name.slice(1)] = decode(part);
    else if (name !== part) return null;
  }
  return names.length === parts.length ? params : null;
}

/** @param {URL} url @param {Route[]} [table] @returns {Place} */
export function resolve(url, table = routes) {
  for (const route of table) {
    const params = match(route.path, url.pathname);
    if (params) return { route, params, path: url.pathname, query: url.searchParams };
  }
  return { route: null, params: {}, path: url.pathname, query: url.searchParams };
}

/** The pages of the navigation of a role. @param {string | undefined} role */
export const listedFor = (role) => routes.filter(({ isListed, isForAdmins }) => isListed && (!isForAdmins || role === "admin"));

const here = () => resolve(new URL(location.href));

/** @type {import("@preact/signals").Signal<Place>} */
export const place = signal({ route: null, params: {}, path: "", query: new URLSearchParams() });

/** What stays in the URL from page to page. */
const KEPT = "zone";

/** The parameters that each page was left with. @type {Map<string, string>} */
const left = new Map();

/** Pages that stay when another of their paths is shown. */
const WHOLE = new Set(["chat", "memory", "settings"]);

/** The parts of one job are one page, which stays when another part is shown. So are all threads. @param {Place} of */
export function pageOf({ route, params, path }) {
  if (route && WHOLE.has(route.name)) return route.name;
  return params["id"] === undefined ? path : `${route?.name} ${params["id"]}`;
}

/** Goes to a page of the dashboard. @param {string} to @param {{ isReplaced?: boolean }} [how] */
export function go(to, { isReplaced = false } = {}) {
  const url = new URL(to, location.href);
  const kept = place.value.query.get(KEPT);
  if (kept && !url.searchParams.has(KEPT)) url.searchParams.set(KEPT, kept);
  const isSamePage = url.pathname === location.pathname;
  if (!isSamePage) left.set(location.pathname, location.search);
  history[isReplaced ? "replaceState" : "pushState"](null, "", url);
  const before = pageOf(place.value);
  place.value = here();
  if (pageOf(place.value) !== before) scrollTo(0, 0);
}

/** Changes parameters of the URL; null removes one. @param {Record<string, string | null>} changes @param {{ isPushed?: boolean }} [how] whether the browser's Back takes it back */
export function setQuery(changes, { isPushed = false } = {}) {
  const url = new URL(location.href);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) url.searchParams.delete(name);
    else url.searchParams.set(name, value);
  }
  history[isPushed ? "pushState" : "replaceState"](null, "", url);
  place.value = here();
}

/** Closes the selected row, or goes back to the list that the page belongs to, as it was left. */
export function goUp() {
  const { route, query, params } = place.value;
  const up = route?.up?.replace(/:(\w+)/g, (_, name) => encodeURIComponent(params[name] ?? ""));
  if (query.has("e")) setQuery({ e: null });
  else if (up) go(up + (left.get(up) ?? ""));
}

/** @param {MouseEvent} event */
function onClick(event) {
  if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const link = event.target instanceof Element ? event.target.closest("a") : null;
  if (!link || link.target || link.hasAttribute("download") || link.origin !== location.origin) return;
  const isInPage = link.hash !== "" && link.pathname === location.pathname && link.search === location.search;
  // Other paths, such as the API's documentation, are the server's.
  if (isInPage || !resolve(new URL(link.href)).route) return;
  event.preventDefault();
  go(link.href);
}

/** Follows links and the browser's history. */
export function startRouter() {
  place.value = here();
  addEventListener("popstate", () => (place.value = here()));
  document.addEventListener("click", onClick);
}
