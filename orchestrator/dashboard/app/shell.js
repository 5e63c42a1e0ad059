// What is around every page: header, navigation, notes, footer, the title, and the login over a page whose session has ended.
//
// Owns which page is shown and the loading of its module. Never knows what a page shows.

import { computed, effect, signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { get } from "./api.js";
import { clock, count, zoneName } from "./format.js";
import * as keys from "./keys.js";
import { connection } from "./live.js";
import { go, listedFor, pageOf, place, routes } from "./router.js";
import { failure, isOutdated, logOut, start, status, who } from "./session.js";
import { resyncs, waiting } from "./store.js";
import { T } from "./texts.js";
import { Dialog, Failed, Icon, Loading, Text, announce, announced, browserZone, chooseZone, html, now, subject, zone } from "./ui.js";

/** @typedef {import("./router.js").Route} Route */
/** @typedef {import("./router.js").PageModule} PageModule */

/** A connection that is lost for longer is called offline. */
const OFFLINE_MS = 15_000;
const LOST_MS = 3_000;
const STORED_THEME = "gantry.theme";

const MISSING = { path: "", name: "missing", load: () => import("./pages/missing.js") };
const PALETTE = { path: "", name: "palette", load: () => import("./palette.js") };
const LOGIN = /** @type {Route} */ (routes.find(({ name }) => name === "login"));

// --- colours

export const theme = signal(localStorage.getItem(STORED_THEME) ?? "system");

/** @param {string} chosen */
export function chooseTheme(chosen) {
  theme.value = chosen;
  localStorage.setItem(STORED_THEME, chosen);
  document.documentElement.dataset["theme"] = chosen;
}
chooseTheme(theme.value);

// --- connection

const lostMs = computed(() => {
  const current = connection.value;
  // The clock of the page makes this change with time.
  return current.state === "reconnecting" && now.value ? Date.now() - current.since : 0;
});
const isLost = computed(() => lostMs.value > LOST_MS);
let wasLost = false;
effect(() => {
  if (isLost.value !== wasLost) announce(isLost.value ? T.connection.lost : T.connection.back);
  wasLost = isLost.value;
});

function connectionWords() {
  const current = connection.value;
  if (current.state === "gone") return T.connection.ended;
  if (current.state !== "reconnecting") return T.connection[current.state];
  if (!navigator.onLine || lostMs.value > OFFLINE_MS) return T.connection.offline(clock(current.since, zone.value).slice(0, 5));
  return T.connection.reconnecting(Math.max(1, Math.ceil((current.retryAt - Date.now()) / 1_000)));
}

function ConnectionState() {
  const { state } = connection.value;
  const icon = state === "live" ? "in_progress" : state === "connecting" ? "loading" : "stuck";
  return html`<span class="connection ${state}"><${Icon} name=${icon} />${connectionWords()}</span>`;
}

// --- what waits for the user

let [waited, resynced] = [0, 0];
effect(() => {
  const [current, isAgain] = [waiting.value, resyncs.value !== resynced];
  resynced = resyncs.value;
  // After missed events the same items are read again.
  if (isAgain) return;
  if (current > waited) announce(T.inbox.announced(current));
  waited = current;
});

// --- header

export function ZoneSwitch() {
  const [setting, setSetting] = useState(/** @type {string | null} */ (null));
  const load = async () => {
    const read = setting === null && (await get("/api/settings").catch(() => null));
    if (read) setSetting(read.timezone ?? "UTC");
  };
  const names = new Map([[zone.value, zone.value], ["UTC", "UTC"]]);
  if (setting) names.set(setting, T.zones.setting(setting));
  names.set(browserZone, T.zones.browser(browserZone));
  return html`
    <label><span class="hidden">${T.zone}</span>
      <select value=${zone.value} onFocus=${load} onChange=${(/** @type {any} */ event) => chooseZone(event.target.value)}>
        ${[...names].map(([name, text]) => html`<option key=${name} value=${name}>${text}</option>`)}
      </select>
    </label>
  `;
}

const ThemeSwitch = () => html`
  <label><span class="hidden">${T.theme}</span>
    <select title=${T.theme} value=${theme.value} onChange=${(/** @type {any} */ event) => chooseTheme(event.target.value)}>
      ${Object.entries(T.themes).map(([name, text]) => html`<option value=${name}>${text}</option>`)}
    </select>
  </label>
`;

/** @param {Route} route */
function titleOf({ name }) {
  const { title } = T[/** @type {"now"} */ (name)];
  return name === "inbox" && waiting.value > 0 ? `${title} (${count(waiting.value)})` : title;
}

function Header() {
  const user = who.value;
  const listed = listedFor(user?.role);
  const current = place.value.route;
  const canWrite = user !== null && user.role !== "viewer";
  useLayoutEffect(() => (canWrite ? keys.bind([{ key: "n", text: T.keys.newJob, run: () => go("/jobs/new") }]) : undefined), [canWrite]);
  return html`
    <header>
      <a class="brand" href="/">${T.name}</a>
      <nav aria-label=${T.navigation}>
        ${listed.map((route) => html`<a href=${route.path} aria-current=${route.name === current?.name ? "page" : undefined}>${titleOf(route)}</a>`)}
      </nav>
      <button type="button" title="Ctrl K" aria-keyshortcuts="Control+K" onClick=${() => (keys.isPaletteOpen.value = true)}>${T.palette.title}</button>
      <${ConnectionState} />
      <${ZoneSwitch} />
      <${ThemeSwitch} />
      ${user && html`<span class="user"><${Text}>${T.user(user.user, user.role)}<//></span>`}
      <button type="button" onClick=${logOut}>${T.logOut}</button>
    </header>
  `;
}

function Notes() {
  const [read, setRead] = useState(0);
  const role = who.value?.role;
  return html`
    ${isOutdated.value && html`<p class="banner" role="status">${T.notes.updated} <${Reload} /></p>`}
    ${resyncs.value > read && html`<p class="banner" role="status">${T.notes.resync}
      <button type="button" onClick=${() => setRead(resyncs.value)}>${T.close}</button></p>`}
    ${(role === "admin" || role === "viewer") && html`<p class="banner">${T.notes[role]}</p>`}
  `;
}

const Reload = () => html`<button type="button" onClick=${() => location.reload()}>${T.reload}</button>`;

const Footer = () => html`
  <footer>
    <a href="/api/docs/">${T.docs}</a>
    <a href=${new URL("../vendor/LICENSES", import.meta.url).pathname}>${T.licences}</a>
    <span class="note">${T.times(zoneName(zone.value, now.value))}</span>
    <button type="button" class="link" onClick=${() => (keys.isListOpen.value = true)}>${T.keys.title}</button>
  </footer>
`;

const KeyList = () => html`
  <${Dialog} title=${T.keys.title} onClose=${() => (keys.isListOpen.value = false)}>
    <dl class="keys">
      ${keys.shortcuts.value.map(({ key, text }) => html`<div><dt><kbd>${key === "Escape" ? "Esc" : key}</kbd></dt><dd>${text}</dd></div>`)}
    </dl>
    <label class="check">
      <input type="checkbox" checked=${keys.isOn.value} onChange=${(/** @type {any} */ event) => keys.setOn(event.target.checked)} />${T.keys.use}
    </label>
  <//>
`;

// --- pages

/** By the name of the page, which may have several paths. @type {Map<string, PageModule>} */
const modules = new Map();

/** The module of a page, or why it could not be loaded. @param {Route} route */
function useModule(route) {
  const [loaded, setLoaded] = useState(/** @type {{ name: string, error: string | null } | null} */ (null));
  const { name } = route;
  useEffect(() => {
    if (modules.has(name)) return;
    route.load().then(
      (module) => (modules.set(name, module), setLoaded({ name, error: null })),
      // Files of an earlier version are no longer there after an update.
      () => fetch(import.meta.url, { method: "HEAD", cache: "no-store" }).then(({ status }) => status === 404, () => false)
        .then((isUpdated) => setLoaded({ name, error: isUpdated ? T.notes.updated : T.errors.page })),
    );
  }, [name]);
  return { module: modules.get(name), error: loaded?.name === name ? loaded.error : null };
}

let opened = "";

/** @param {{ route: Route }} props */
function Page({ route }) {
  const { params, query } = place.value;
  const page = pageOf(place.value);
  const { module, error } = useModule(route);
  const [waits, named] = [waiting.value, subject.value];
  useEffect(() => {
    if (module) document.title = `${waits > 0 ? `(${count(waits)}) ` : ""}${named ?? module.title} · ${T.name}`;
  }, [module, waits, named]);
  useEffect(() => {
    if (!module || opened === page) return;
    const isFirst = opened === "";
    opened = page;
    if (isFirst) return;
    /** @type {HTMLElement | null} */ (document.querySelector("main [autofocus]") ?? document.querySelector("h1"))?.focus();
  }, [module, page]);
  if (error) return html`<p class="failure" role="alert">${error} <${Reload} /></p>`;
  return module ? html`<${module.default} key=${page} params=${params} query=${query} />` : html`<${Loading} />`;
}

function LoginDialog() {
  const { module, error } = useModule(LOGIN);
  const { LoginForm } = /** @type {any} */ (module ?? {});
  // A dialog gives the focus to what is in it when it opens.
  return (module || error) && html`
    <${Dialog} title=${T.login.ended}>
      <p>${T.login.endedNote}</p>
      ${error ? html`<p>${error}</p><${Reload} />` : html`<${LoginForm} />`}
    <//>
  `;
}

/** The search is loaded when it is opened for the first time. */
function Palette() {
  const { module, error } = useModule(PALETTE);
  const [text, setText] = useState("");
  const close = () => (keys.isPaletteOpen.value = false);
  // What is typed before the module is there is its first text.
  const field = html`<input aria-label=${T.palette.label} autofocus value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} />`;
  return html`
    <${Dialog} title=${T.palette.title} onClose=${close}>
      <div class="palette">${error ? html`<p class="failure" role="alert">${error} <${Reload} /></p>` : module ? html`<${module.default} text=${text} onClose=${close} />` : field}</div>
    <//>
  `;
}

/** The whole page. */
export function Shell() {
  const { route } = place.value;
  const isLogin = status.value === "none" || route === LOGIN;
  if (status.value === "starting") return html`<main id="main"><${Loading} /></main>`;
  if (status.value === "unreachable") {
    return html`<main id="main"><${Failed} error=${failure.value ?? new Error(T.errors.network)} again=${start} /></main>`;
  }
  return html`
    <a class="skip" href="#main">${T.skip}</a>
    ${!isLogin && html`<${Header} /><${Notes} />`}
    <main id="main" tabindex="-1" class=${isLogin ? "narrow" : ""}><${Page} route=${isLogin ? LOGIN : (route ?? MISSING)} /></main>
    <${Footer} />
    <p class="hidden" role="status">${announced.value}</p>
    ${keys.isListOpen.value && html`<${KeyList} />`}
    ${keys.isPaletteOpen.value && !isLogin && html`<${Palette} />`}
    ${status.value === "ended" && route !== LOGIN && html`<${LoginDialog} />`}
  `;
}
