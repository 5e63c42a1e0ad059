// Numbers, times and ids as texts. Pure: the zone and the present are arguments, so nothing here looks at a clock.

/** @type {Map<string, Intl.DateTimeFormat>} */
const formatters = new Map();

/**
 * Making a formatter takes far longer than using one.
 * @param {string} zone @param {"time" | "date" | "offset"} what
 */
function formatter(zone, what) {
  const key = `${what} ${zone}`;
  let found = formatters.get(key);
  if (!found) {
    /** @type {Intl.DateTimeFormatOptions} */
    const options =
      what === "time" ? { hour: "2-digit", minute: "2-digit", second: "2-digit" }
      : what === "date" ? { day: "numeric", month: "short", year: "numeric" }
      : { timeZoneName: "shortOffset", year: "numeric" };
    found = new Intl.DateTimeFormat("en-GB", { ...options, timeZone: zone, hourCycle: "h23" });
    formatters.set(key, found);
  }
  return found;
}

/** `14:02:11` in a zone. @param {number} at @param {string} zone */
export const clock = (at, zone) => formatter(zone, "time").format(at);

/** `28 Nov 2026`. @param {number} at @param {string} zone */
export const date = (at, zone) => formatter(zone, "date").format(at);

/** A time, with its day unless that is today. @param {number} at @param {string} zone @param {number} now */
export function time(at, zone, now) {
  const [day, today] = [date(at, zone), date(now, zone)];
  return day === today ? clock(at, zone) : `${day}, ${clock(at, zone)}`;
}

/** `Europe/Oslo (GMT+1)`: offsets change with the time of year. @param {string} zone @param {number} at */
export function zoneName(zone, at) {
  const offset = formatter(zone, "offset").formatToParts(at).find((part) => part.type === "timeZoneName")?.value ?? "";
  return offset === zone || zone === "UTC" ? zone : `${zone} (${offset})`;
}

/** Whether the browser knows a zone. @param {string | null | undefined} name */
export function isZone(name) {
  try {
    return Boolean(name) && Boolean(new Intl.DateTimeFormat("en-GB", { timeZone: name ?? "" }));
  } catch {
    return false;
  }
}

const SECOND = 1_000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** `04:12`, `1:04:12`, `2 d 03:04`. @param {number} ms */
export function duration(ms) {
  const left = Math.max(0, ms);
  const two = (/** @type {number} */ number) => String(Math.floor(number)).padStart(2, "0");
  const [days, hours] = [Math.floor(left / DAY), Math.floor((left % DAY) / HOUR)];
  const minutes = (left % HOUR) / MINUTE;
  if (days > 0) return `${days} d ${two(hours)}:${two(minutes)}`;
  const short = `${two(minutes)}:${two((left % MINUTE) / SECOND)}`;
  return hours > 0 ? `${hours}:${short}` : short;
}

/** `in 3 min`, `10 min ago`, `just now`. @param {number} at @param {number} now */
export function relative(at, now) {
  const distance = Math.abs(at - now);
  if (distance < 5 * SECOND) return "just now";
  const units = /** @type {const} */ ([[DAY, "d"], [HOUR, "h"], [MINUTE, "min"], [SECOND, "s"]]);
  const [size, name] = units.find(([size]) => distance >= size) ?? [SECOND, "s"];
  const text = `${Math.floor(distance / size)} ${name}`;
  return at > now ? `in ${text}` : `${text} ago`;
}

/** The end of an id: its beginning is the time, which neighbours share. @param {string} id */
export const shortId = (id) => `…${id.replaceAll("-", "").slice(-8)}`;

/** `512 B`, `4.1 KB`, `12 MB`. @param {number} size */
export function bytes(size) {
  if (size < 1_000) return `${size} B`;
  const units = ["KB", "MB", "GB", "TB"];
  const power = Math.min(units.length, Math.floor(Math.log10(size) / 3));
  const scaled = size / 1_000 ** power;
  return `${scaled < 10 ? scaled.toFixed(1) : Math.round(scaled)} ${units[power - 1]}`;
}

/** `310`, `1,000+`. @param {number} number */
export const count = (number) => (number < 1_000 ? String(number) : "1,000+");

/** `310`, `12.4k`, `1.2M`. @param {number} count */
export function tokens(count) {
  if (count < 1_000) return String(count);
  const [size, unit] = count < 999_950 ? [1_000, "k"] : [1_000_000, "M"];
  const scaled = count / size;
  return `${scaled < 100 ? scaled.toFixed(1).replace(/\.0$/, "") : Math.round(scaled)}${unit}`;
}

/** `$0.21`, `$0.0012`; without a price it is not free. @param {number | null | undefined} usd */
export function cost(usd) {
  if (usd === null || usd === undefined) return "unpriced";
  if (usd === 0) return "$0";
  if (usd < 0.0001) return "<$0.0001";
  return `$${usd.toFixed(usd < 0.01 ? 4 : 2)}`;
}

/** `310 ms`, `4.2 s`; nothing while it is not known. @param {number | null | undefined} ms */
export function took(ms) {
  if (ms === null || ms === undefined) return "";
  return ms < 1_000 ? `${ms} ms` : `${(ms / 1_000).toFixed(1)} s`;
}

/** Characters that change the direction of what follows: a text would read other than it is. */
const OVERRIDES = /([\u202a-\u202e\u2066-\u2069])/u;

/** A text as parts and, at odd places, such characters. @param {string} text */
export const pieces = (text) => text.split(OVERRIDES);

/** `U+202E`. @param {string} character */
export const codeOf = (character) => `U+${(character.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}`;
