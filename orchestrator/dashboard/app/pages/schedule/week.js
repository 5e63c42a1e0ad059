// Weeks and hours in a time zone. Pure: zone and present are arguments.
//
// An hour is always one of UTC, placed where it begins in the zone. So a day in which the clock changes has an empty hour, or two in one place.

const HOUR = 3_600_000;
const DAY = 24 * HOUR;

/** @type {Map<string, Intl.DateTimeFormat>} */
const formatters = new Map();

/** The wall clock of a zone, as if it were UTC. @param {number} at @param {string} zone */
export function wall(at, zone) {
  let formatter = formatters.get(zone);
  if (!formatter) {
    formatter = new Intl.DateTimeFormat("en-GB", {
      timeZone: zone, hourCycle: "h23", year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
    });
    formatters.set(zone, formatter);
  }
  const parts = Object.fromEntries(formatter.formatToParts(at).map(({ type, value }) => [type, Number(value)]));
  return Date.UTC(parts["year"] ?? 0, (parts["month"] ?? 1) - 1, parts["day"], parts["hour"], parts["minute"], parts["second"]);
}

/** `2026-11-30T09:00` in a zone, for a field. @param {number} at @param {string} zone */
export const toLocal = (at, zone) => new Date(wall(at, zone)).toISOString().slice(0, 16);

/** The time of `2026-11-30T09:00` in a zone; one that the clock skips is as much later. @param {string} local @param {string} zone */
export function fromLocal(local, zone) {
  const wanted = Date.parse(`${local}Z`);
  if (Number.isNaN(wanted)) return NaN;
  // The offset at a guess is right but near a change of the clock, so it is looked at again.
  const guess = wanted - (wall(wanted, zone) - wanted);
  return wanted - (wall(guess, zone) - guess);
}

/** The day of the week from Monday, 0 to 6. @param {number} day midnight, as if it were UTC */
const weekday = (day) => (new Date(day).getUTCDay() + 6) % 7;

/** `2026-W48`, the week of ISO 8601 that a day is in. @param {number} day as if it were UTC */
export function weekOf(day) {
  const midnight = Math.floor(day / DAY) * DAY;
  // Its Thursday decides which year it belongs to.
  const thursday = midnight + (3 - weekday(midnight)) * DAY;
  const year = new Date(thursday).getUTCFullYear();
  const number = Math.floor((thursday - Date.UTC(year, 0, 1)) / (7 * DAY)) + 1;
  return `${year}-W${String(number).padStart(2, "0")}`;
}

/** The Monday of a week, as if it were UTC; null if it is no week. @param {string | null} week */
export function mondayOf(week) {
  const [, year, number] = /^(\d{4})-W(\d\d)$/.exec(week ?? "") ?? [];
  if (!year) return null;
  const fourth = Date.UTC(Number(year), 0, 4);
  const monday = fourth - weekday(fourth) * DAY + (Number(number) - 1) * 7 * DAY;
  return weekOf(monday) === week ? monday : null;
}

/** @param {string} week @param {number} weeks */
export const shifted = (week, weeks) => weekOf((mondayOf(week) ?? 0) + weeks * 7 * DAY);

/**
 * The hours of UTC of a week in a zone: 7 days of 24 places, each with the hours that begin there. Days are as if they were UTC.
 * @param {string} week @param {string} zone
 */
export function gridOf(week, zone) {
  const monday = mondayOf(week) ?? 0;
  const days = Array.from({ length: 7 }, (_, day) => ({ day: monday + day * DAY, hours: Array.from({ length: 24 }, () => /** @type {number[]} */ ([])) }));
  // Zones are up to 14 hours from UTC.
  for (let at = monday - 15 * HOUR; at < monday + 7 * DAY + 15 * HOUR; at += HOUR) {
    const place = wall(at, zone) - monday;
    days[Math.floor(place / DAY)]?.hours[Math.floor((place % DAY) / HOUR)]?.push(at);
  }
  const all = days.flatMap(({ hours }) => hours.flat());
  return { days, from: all[0] ?? monday, to: (all.at(-1) ?? monday) + HOUR };
}
