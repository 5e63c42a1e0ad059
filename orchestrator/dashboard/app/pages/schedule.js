// A week of runs and planned firings by hour, in the chosen zone: what has happened comes from the runs, what is planned from the routines.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "../api.js";
import { clock } from "../format.js";
import { bindRows } from "../keys.js";
import { Typed, useNarrow } from "../parts.js";
import { place } from "../router.js";
import { generation, serverNow, who } from "../session.js";
import { resyncs, routines, runs } from "../store.js";
import { T } from "../texts.js";
import { CopyAs, Heading, Icon, Text, Time, html, useLoad, zone } from "../ui.js";
import { RoutineTabs, iconOf } from "./routine/words.js";
import { gridOf, mondayOf, shifted, wall, weekOf } from "./schedule/week.js";

/** @typedef {import("../api.js").schemas["RunStatus"]} RunStatus */
/** @typedef {{ statuses: Record<string, number>, planned: number }} Hour */
/** @typedef {{ routine_id: string, routine_name: string, user_id: string, utc: string, local: string }} Firing */

export const title = T.schedule.title;

const HOUR = 3_600_000;
/** What has changed is read no more often. */
const PAUSE_MS = 5_000;
/** The server computes so far, from its own present. */
const HORIZON_MS = 8 * 24 * HOUR - 60_000;
const LIST = 200;
/** What decides the colour of an hour, the worst first. */
const WORST = /** @type {const} */ (["failed", "missed", "attention", "skipped", "running", "queued", "ok"]);
const DAYS = new Intl.DateTimeFormat("en-GB", { weekday: "short", day: "numeric", month: "short", timeZone: "UTC" });

/** @param {number} ms */
const iso = (ms) => new Date(ms).toISOString().replace(".000", "");

/** @param {string} path @param {Record<string, string | number | undefined>} query @param {AbortSignal} signal @returns {Promise<any>} */
const getAny = (path, query, signal) => get(/** @type {any} */ (path), { query, signal });

/**
 * What has happened and what is planned in a week, by the hour in UTC.
 * @param {{ from: number, to: number }} week @param {string | undefined} user @param {AbortSignal} signal
 */
async function read({ from, to }, user, signal) {
  const present = serverNow();
  const end = Math.min(to, present + HOUR);
  const [past, future] = await Promise.all([
    from < end ? getAny("/api/runs/histogram", { since: iso(from), until: iso(to), user }, signal) : { items: [] },
    to > present && from < present + HORIZON_MS ? getAny("/api/routines/upcoming", { until: iso(present + HORIZON_MS), limit: LIST, user }, signal) : { items: [], hours: [], left_out: 0 },
  ]);
  /** @type {Map<number, Hour>} */
  const hours = new Map();
  const at = (/** @type {string} */ hour) => {
    const ms = Date.parse(hour);
    const known = hours.get(ms) ?? { statuses: {}, planned: 0 };
    hours.set(ms, known);
    return known;
  };
  for (const { hour, statuses } of past.items) at(hour).statuses = statuses;
  for (const { hour, count } of future.hours) if (Date.parse(hour) >= from && Date.parse(hour) < to) at(hour).planned = count;
  const next = /** @type {Firing | undefined} */ (future.items[0]);
  return { hours, next, planned: /** @type {Firing[]} */ (future.items), leftOut: future.left_out, isBeyond: to > present + HORIZON_MS };
}

/** The counts of some hours together. Pure. @param {(Hour | undefined)[]} hours @returns {Hour} */
export function sum(hours) {
  /** @type {Record<string, number>} */
  const statuses = {};
  for (const hour of hours) for (const [status, count] of Object.entries(hour?.statuses ?? {})) if (count > 0) statuses[status] = (statuses[status] ?? 0) + count;
  return { statuses, planned: hours.reduce((all, hour) => all + (hour?.planned ?? 0), 0) };
}

/** @param {Hour} hour */
const words = ({ statuses, planned }) => [...WORST.filter((status) => statuses[status]).map((status) => `${statuses[status]} ${T.runs.statuses[status]}`),
  ...(planned > 0 ? [`${planned} ${T.schedule.planned}`] : [])].join(", ");

/** @param {{ hours: number[], of: Map<number, Hour>, name: string }} props */
function Cell({ hours, of, name }) {
  if (hours.length === 0) return html`<td class="gone" title=${T.schedule.gone}><span aria-hidden="true">·</span></td>`;
  const hour = sum(hours.map((at) => of.get(at)));
  const worst = WORST.find((status) => hour.statuses[status]);
  const [from, to] = [hours[0] ?? 0, (hours.at(-1) ?? 0) + HOUR];
  const user = place.value.query.get("user");
  const ran = Object.values(hour.statuses).reduce((all, count) => all + count, 0);
  const present = serverNow();
  const runsPath = `/runs?${new URLSearchParams({ since: iso(from), until: iso(to), ...(user && { user }) })}`;
  const plan = new URLSearchParams(place.value.query);
  plan.set("hour", iso(from));
  return html`
    <td class=${from <= present && present < to ? "present" : ""}>
      ${worst && html`<a class="hour ${worst}" href=${runsPath} title=${`${name}: ${words({ ...hour, planned: 0 })}`}>
        <span class="hidden">${name}: ${words({ ...hour, planned: 0 })}</span><span aria-hidden="true"><${Icon} name=${iconOf(worst)} />${ran}</span></a>`}
      ${hour.planned > 0 && html`<a class="hour planned" href=${`/routines/schedule?${plan}`} title=${`${name}: ${words({ statuses: {}, planned: hour.planned })}`}>
        <span class="hidden">${name}: ${words({ statuses: {}, planned: hour.planned })}</span><span aria-hidden="true">${hour.planned}</span></a>`}
    </td>
  `;
}

const two = (/** @type {number} */ hour) => String(hour).padStart(2, "0");

/** Days are rows where there is room for 24 columns, else columns. @param {{ grid: ReturnType<typeof gridOf>, of: Map<number, Hour> }} props */
function Grid({ grid: { days }, of }) {
  const isNarrow = useNarrow();
  const today = Math.floor(wall(serverNow(), zone.value) / (24 * HOUR)) * 24 * HOUR;
  const dayName = (/** @type {number} */ day) => DAYS.format(day).replace(",", "");
  const cell = (/** @type {(typeof days)[number]} */ { day, hours }, /** @type {number} */ hour) => html`<${Cell} key=${`${day} ${hour}`} hours=${hours[hour] ?? []} of=${of} name=${`${dayName(day)} ${two(hour)}:00`} />`;
  const dayHead = (/** @type {number} */ day, /** @type {"row" | "col"} */ scope) => html`
    <th key=${day} scope=${scope} class=${day === today ? "today" : ""} aria-current=${day === today ? "date" : undefined}>${isNarrow ? html`${dayName(day).split(" ")[0]}<br />${dayName(day).split(" ")[1]}` : dayName(day)}</th>`;
  const all = Array.from({ length: 24 }, (_, hour) => hour);
  return html`
    <table class="week ${isNarrow ? "narrow" : ""}"><caption class="hidden">${T.schedule.table(zone.value)}</caption>
      ${isNarrow ? html`
        <thead><tr><th scope="col"><span class="hidden">${T.schedule.hour}</span></th>${days.map(({ day }) => dayHead(day, "col"))}</tr></thead>
        <tbody>${all.map((hour) => html`<tr key=${hour}><th scope="row">${two(hour)}</th>${days.map((day) => cell(day, hour))}</tr>`)}</tbody>` : html`
        <thead><tr><th scope="col"><span class="hidden">${T.schedule.day}</span></th>${all.map((hour) => html`<th key=${hour} scope="col">${two(hour)}</th>`)}</tr></thead>
        <tbody>${days.map((day) => html`<tr key=${day.day}>${dayHead(day.day, "row")}${all.map((hour) => cell(day, hour))}</tr>`)}</tbody>`}
    </table>
  `;
}

/** The planned firings of a place, as far as they are among the soonest that were read. @param {{ hours: number[], planned: Firing[], count: number }} props */
function Planned({ hours, planned, count }) {
  const at = hours[0] ?? 0;
  const rows = planned.filter(({ utc }) => hours.some((hour) => Date.parse(utc) >= hour && Date.parse(utc) < hour + HOUR));
  const rest = new URLSearchParams(place.value.query);
  rest.delete("hour");
  useEffect(() => /** @type {HTMLElement | null} */ (document.querySelector("#planned"))?.focus(), [at]);
  return html`
    <section aria-labelledby="planned">
      <h2 id="planned" tabindex="-1">${T.schedule.list(`${DAYS.format(wall(at, zone.value))}, ${clock(at, zone.value).slice(0, 5)}`)} <a class="button" href=${`/routines/schedule?${rest}`}>${T.schedule.close}</a></h2>
      <ul class="rows">${rows.map((one) => html`<li key=${`${one.routine_id} ${one.utc}`} class="item line"><${Time} at=${one.utc} /> <a class="open" href=${`/routines/${one.routine_id}`}><${Text}>${one.routine_name}<//></a>
        ${who.value?.role === "admin" && html`<span class="note"><${Text}>${one.user_id}<//></span>`}</li>`)}</ul>
      ${count > rows.length && html`<p class="note">${T.schedule.more(count - rows.length)}</p>`}
    </section>
  `;
}

/** @param {{ week: string }} props */
function Weeks({ week }) {
  const path = (/** @type {string | null} */ to) => {
    const query = new URLSearchParams(place.value.query);
    query.delete("hour");
    if (to) query.set("week", to);
    else query.delete("week");
    return `/routines/schedule${query.size > 0 ? `?${query}` : ""}`;
  };
  return html`
    <p class="line"><a class="button" href=${path(shifted(week, -1))}>◀ ${T.schedule.before}</a> <strong>${T.schedule.week(week)}</strong>
      <a class="button" href=${path(shifted(week, 1))}>${T.schedule.after} ▶</a> <a class="button" href=${path(null)}>${T.schedule.now}</a></p>
  `;
}

const Legend = () => html`
  <ul class="legend">${WORST.filter((status) => status !== "queued").map((status) => html`<li key=${status}><span class="hour ${status}"><${Icon} name=${iconOf(status)} /></span> ${T.runs.statuses[status]}</li>`)}
    <li><span class="hour planned">1</span> ${T.schedule.planned}</li></ul>
`;

/** Follows a value that may change often, a while later. @param {string} value */
function useLater(value) {
  const [later, setLater] = useState(value);
  const last = useRef(value);
  last.current = value;
  useEffect(() => {
    if (value === later) return;
    const timer = setTimeout(() => setLater(last.current), PAUSE_MS);
    return () => clearTimeout(timer);
  }, [value === later, later]);
  return later;
}

/** What is known of runs and routines: when it is another, the week may be. */
const heard = () => runs.all().map(({ id, status }) => id.slice(-4) + status[0]).join("") + routines.all().map(({ rev, enabled }) => `${rev}${enabled}`).join();

export default function Schedule() {
  const { query } = place.value;
  const given = query.get("week");
  const present = weekOf(wall(serverNow(), zone.value));
  const week = mondayOf(given) === null ? present : String(given);
  const grid = useMemo(() => gridOf(week, zone.value), [week, zone.value]);
  const user = query.get("user") ?? undefined;
  const changed = useLater(heard());
  const { value, status } = useLoad((signal) => read(grid, user, signal), [grid.from, grid.to, user, changed, generation.value, resyncs.value]);
  useLayoutEffect(() => bindRows(".week a"), []);
  const all = value ? words(sum([...value.hours.values()])) : "";
  const hour = Date.parse(query.get("hour") ?? "");
  const chosen = grid.days.flatMap(({ hours }) => hours).find((hours) => hours.includes(hour));
  const isSplit = grid.from % HOUR !== wall(grid.from, zone.value) % HOUR;
  return html`
    <${Heading}>${title}<//>
    <${RoutineTabs} />
    <${Weeks} week=${week} />
    ${who.value?.role === "admin" && html`<div class="filters" role="search"><${Typed} name=${T.jobs.user} filter="user" given=${user} /></div>`}
    ${status}
    ${value && html`
      <p>${all ? T.schedule.total(all) : T.schedule.none}
        ${value.next && Date.parse(value.next.utc) >= grid.to && html` ${T.schedule.next} <a href=${`/routines/schedule?week=${weekOf(wall(Date.parse(value.next.utc), zone.value))}`}><${Time} at=${value.next.utc} /></a>`}</p>
      <${Grid} grid=${grid} of=${value.hours} />
      <${Legend} />
      ${value.isBeyond && html`<p class="note">${T.schedule.limit}</p>`}
      ${isSplit && html`<p class="note">${T.schedule.parts}</p>`}
      ${value.leftOut > 0 && html`<p class="note">${T.schedule.leftOut(value.leftOut)}</p>`}
      ${chosen && html`<${Planned} hours=${chosen} planned=${value.planned} count=${sum(chosen.map((at) => value.hours.get(at))).planned} />`}`}
    <${CopyAs} cli="gantry routine list" path=${`/api/routines/upcoming?until=${iso(grid.to)}`} />
  `;
}
