// Words, forms and colours of routines and runs; what fires and what is done as short texts; the last runs as bars.

import { useMemo } from "preact/hooks";
import { duration, took } from "../../format.js";
import { Tabs } from "../../parts.js";
import { go, place } from "../../router.js";
import { T } from "../../texts.js";
import { Icon, html, now } from "../../ui.js";

// --- the last runs of a routine as bars: as high as they took long, with a form for what was skipped, missed or failed
// They are for the eye only: the page that uses them shows the same runs as a list or a table.

/** @typedef {import("../../store.js").Run} Run */

const LOWEST = 0.12;

/** How high a bar is, from 0 to 1. Those of runs that did not start are low. Pure. @param {number | null} ms @param {number} longest */
export const heightOf = (ms, longest) => (ms === null || longest === 0 ? LOWEST : LOWEST + (1 - LOWEST) * Math.min(1, ms / longest));

/** @param {{ run: Run, ms: number | null, longest: number, x: number, size: { width: number, height: number } }} props */
function Bar({ run, ms, longest, x, size: { width, height } }) {
  const high = Math.round(heightOf(ms, longest) * height);
  const [left, right, top] = [x + 1, x + width - 1, height - high];
  const words = [T.runs.statuses[run.status], ms === null ? "" : short(ms), whyOf(run)].filter(Boolean).join(" · ");
  // A cross over what failed, so that it is not the colour alone.
  const middle = (left + right) / 2;
  const cross = Math.min(3, width / 3);
  const at = Math.max(cross, top - cross - 1);
  return html`
    <g class="bar ${run.status}" data-run=${run.id}>
      <title>${words}</title>
      <rect class="back" x=${x} y="0" width=${width} height=${height} />
      <rect class="front" x=${left} y=${top} width=${right - left} height=${high} />
      ${run.status === "failed" && html`<path d=${`m${middle - cross} ${at - cross} ${2 * cross} ${2 * cross}m0 ${-2 * cross} ${-2 * cross} ${2 * cross}`} />`}
    </g>
  `;
}

/** @param {{ runs: Run[], width: number, height: number, isSmall?: boolean }} props the oldest run first; sizes of one bar */
export function Bars({ runs, width, height, isSmall = false }) {
  // Only a run that is in progress changes with the time.
  const isRunning = runs.some(({ status }) => status === "running");
  const present = isRunning ? now.value : 0;
  const times = useMemo(() => runs.map((run) => tookMs(run, present)), [runs, present]);
  const longest = Math.max(0, ...times.map((ms) => ms ?? 0));
  const onClick = (/** @type {any} */ event) => {
    const id = event.target.closest?.("[data-run]")?.getAttribute("data-run");
    if (id) go(`/runs/${id}`);
  };
  const whole = Math.max(1, runs.length) * width;
  return html`
    <svg class="bars" aria-hidden="true" viewBox=${`0 0 ${whole} ${height}`} width=${whole} height=${height} onClick=${isSmall ? undefined : onClick}>
      ${runs.map((run, index) => html`<${Bar} key=${run.id} run=${run} ms=${times[index] ?? null} longest=${longest} x=${index * width} size=${{ width, height }} />`)}
    </svg>
  `;
}

// --- the way between the lists of routines and of runs, and the schedule

export const RoutineTabs = () => html`<${Tabs} name=${T.routines.parts} words=${T.routines.tabs} current=${place.value.path} path=${(/** @type {string} */ path) => path} />`;

/** @typedef {import("../../api.js").schemas} schemas */
/** @typedef {schemas["RunStatus"]} RunStatus */
/** @typedef {schemas["RoutineStatus"]} RoutineStatus */

/** The form and the colour of each status: those of a job's state that means the same. @type {Record<RunStatus, [icon: string, tone: string]>} */
const RUNS = {
  queued: ["pending", "pending"],
  running: ["in_progress", "in_progress"],
  ok: ["completed", "completed"],
  attention: ["event", "in_progress"],
  failed: ["failed", "failed"],
  skipped: ["cancelled", "cancelled"],
  missed: ["stuck", "stuck"],
};
/** @type {Record<RoutineStatus, [icon: string, tone: string]>} */
const ROUTINES = {
  active: ["completed", "completed"],
  attention: ["event", "in_progress"],
  failing: ["failed", "failed"],
  running: ["in_progress", "in_progress"],
  unverified: ["pending", "pending"],
  disabled: ["waits", "cancelled"],
};

/** The form of a run's status. @param {RunStatus} status */
export const iconOf = (status) => RUNS[status][0];

/** @param {{ status: RunStatus }} props */
export const RunState = ({ status }) => html`<span class="state ${RUNS[status]?.[1]}"><${Icon} name=${RUNS[status]?.[0]} />${T.runs.statuses[status] ?? status}</span>`;

/** @param {{ status: RoutineStatus }} props */
export const RoutineState = ({ status }) => html`
  <span class="state ${ROUTINES[status]?.[1]}"><${Icon} name=${ROUTINES[status]?.[0]} />${T.routines.statuses[status] ?? status}</span>`;

const UNITS = /** @type {const} */ ([[86_400, "d"], [3_600, "h"], [60, "min"]]);

/** `10 min`, `90 s`: the largest unit without a rest. @param {number} seconds */
export function interval(seconds) {
  const [size, unit] = UNITS.find(([size]) => seconds >= size && seconds % size === 0) ?? [1, "s"];
  return `${seconds / size} ${unit}`;
}

/** One time of a day, each day or on days of the week. */
const DAILY = /^(\d{1,2}) (\d{1,2}) \* \* (\*|(?:[0-7]|[a-z]{3})(?:[,-](?:[0-7]|[a-z]{3}))*)$/i;

/** `every day at 07:30`, `Mon-Fri at 09:00`; other calendars are as they were written: the server's times say what they mean. @param {string} schedule */
export function calendarWords(schedule) {
  const [, minute = "", hour = "", days = ""] = DAILY.exec(schedule) ?? [];
  if (!days) return `${T.routine.triggers.cron} ${schedule}`;
  const name = (/** @type {string} */ day) => DAYS[Number(day) % 7] ?? `${day[0]?.toUpperCase()}${day.slice(1).toLowerCase()}`;
  return `${days === "*" ? T.routine.daily : days.replace(/\w+/g, name).replaceAll(",", ", ")} ${T.routine.atTime(hour, minute)}`;
}

/** What fires a routine. @param {any} trigger */
export function triggerWords(trigger) {
  const words = T.routine.triggers;
  switch (trigger?.type) {
    case "cron": return calendarWords(trigger.schedule);
    case "at": return `${words.at} ${trigger.at}`;
    case "every": return `${words.every} ${interval(trigger.every_seconds)}`;
    case "event": return [words.event, trigger.channel, `/${trigger.pattern}/`].filter(Boolean).join(" ");
    case "system_event": return `${words.system_event} ${trigger.source}: ${trigger.event_type}`;
    case "webhook": return `${words.webhook} ${trigger.path ?? ""}`.trim();
    default: return words[/** @type {"manual"} */ (trigger?.type)] ?? String(trigger?.type);
  }
}

/** The text of an action, and under which name it has it. @param {any} action @returns {[name: string, text: string]} */
export function textOf(action) {
  const name = { lightweight: "prompt", full_job: "description", system_event_text: "text" }[/** @type {string} */ (action?.type)] ?? "prompt";
  return [name, String(action?.[name] ?? "")];
}

/** How long a run took; nothing before it has started. @param {Pick<schemas["RoutineRun"], "started_at" | "completed_at">} run @param {number} now */
export function tookMs({ started_at: from, completed_at: to }, now) {
  return from ? Math.max(0, (to ? Date.parse(to) : now) - Date.parse(from)) : null;
}

/** `240 ms`, `1.2 s`, `04:12`. @param {number | null} ms */
export function short(ms) {
  if (ms === null) return "–";
  return ms < 60_000 ? took(ms) : duration(ms);
}

/** Why a run ended as it did, or what is counted. @param {Pick<schemas["RoutineRun"], "reason" | "message" | "skipped_count" | "missed_count">} run */
export function whyOf({ reason, message, skipped_count: skipped, missed_count: missed }) {
  const times = skipped ?? missed ?? 1;
  return [times > 1 ? `×${times}` : "", [reason, message].filter(Boolean).join(": ")].filter(Boolean).join(" ");
}

const DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];

/** A time with an offset as it was written: `Mon 30 Nov, 09:00`, `+01:00`. @param {string} local */
export function localTime(local) {
  const [, day = "", clock = "", zone = ""] = /^(\d{4}-\d\d-\d\d)T(\d\d:\d\d(?::\d\d)?)(?:\.\d+)?(.*)$/.exec(local) ?? [];
  const at = new Date(`${day}T00:00:00Z`);
  if (Number.isNaN(at.getTime())) return { text: local, offset: "" };
  const month = at.toLocaleString("en-GB", { month: "short", timeZone: "UTC" });
  return { text: `${DAYS[at.getUTCDay()]} ${at.getUTCDate()} ${month}, ${clock.replace(/:00$/, (end) => (clock.length > 5 ? "" : end))}`, offset: /^(Z|\+00:00)$/.test(zone) ? "UTC" : zone };
}
