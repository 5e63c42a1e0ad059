// The entries of a thread, and the answer that is being written. Pure: pages and events go in, rows come out.
//
// Owns the order of entries, which arrive twice and in any order of pages, how many are kept, and which pieces of an answer count.

/** @typedef {{ id: string, seq: number | null, at: string, role: string } & Record<string, any>} Entry */
/** A call and its result are one row. @typedef {{ key: string, entry: Entry, result: Entry | null }} Row */
/** `isCut`: its beginning was not heard, or is too long ago. @typedef {{ text: string, reasoning: string, isCut: boolean }} Live */
/** @typedef {{ id: string, call_id?: string | null | undefined, created_at: string, state: string }} Parked */

export const MAX_ENTRIES = 1_000;
const MAX_CHARS = 4_000_000;
const LIVE_CHARS = 65_536;

/** Entries of the agent: the pieces before one are in it. */
const OF_AGENT = new Set(["assistant", "tool_use", "error"]);

/** @param {Entry} entry */
const charsOf = ({ content, output, input }) => (content ?? output ?? JSON.stringify(input) ?? "").length;

/** Queued entries are behind the others; ids begin with the time. @param {Entry} one @param {Entry} other */
function compare(one, other) {
  const [first, second] = [one.seq ?? Infinity, other.seq ?? Infinity];
  if (first !== second) return first - second;
  return one.id < other.id ? -1 : 1;
}

/**
 * Joins calls with their results. Other turns may use the same ids. A row that has not changed is the same object as before.
 * @param {Entry[]} entries @param {Row[]} [before] @returns {Row[]}
 */
export function rowsOf(entries, before = []) {
  const known = new Map(before.map((row) => [row.key, row]));
  /** @type {Map<string, Row>} */
  const open = new Map();
  const rows = entries.flatMap((entry) => {
    const call = entry["call_id"];
    const row = entry.role === "tool_result" ? open.get(call) : undefined;
    if (row) {
      row.result = entry;
      open.delete(call);
      return [];
    }
    /** @type {Row} */
    const added = { key: entry.id, entry, result: null };
    if (entry.role === "tool_use") open.set(call, added);
    return [added];
  });
  return rows.map((row) => {
    const same = known.get(row.key);
    return same && same.entry === row.entry && same.result === row.result ? same : row;
  });
}

/**
 * The row that each gate belongs to: the first call with its id after it, which is written once the gate is resolved. `null` has those
 * without a row that wait.
 * @template {Parked} Gate
 * @param {Row[]} rows @param {Gate[]} gates @returns {Map<string | null, Gate[]>}
 */
export function placesOf(rows, gates) {
  /** @type {Map<string | null, Gate[]>} */
  const places = new Map();
  for (const gate of gates) {
    const at = Date.parse(gate.created_at);
    const isCall = (/** @type {Row} */ { entry }) => entry.role === "tool_use" && entry["call_id"] === gate.call_id && Date.parse(entry.at) >= at;
    // Before the first row is another page; calls of later turns may have the same id.
    const row = rows[0] && Date.parse(rows[0].entry.at) <= at ? rows.find(isCall) : undefined;
    const key = row?.key ?? null;
    if (key === null && gate.state !== "pending") continue;
    places.set(key, [...(places.get(key) ?? []), gate]);
  }
  return places;
}

export function createConversation() {
  /** @type {Map<string, Entry>} */
  const entries = new Map();
  /** @type {Row[] | null} */
  let rows = null;
  /** The rows before the last change. @type {Row[]} */
  let shown = [];
  /** Where the page before the first entry is. @type {string | null} */
  let cursor = null;
  let hasPage = false;
  let isFull = false;
  let chars = 0;
  /** @type {Live | null} */
  let live = null;
  let progress = "";

  const inOrder = () => [...entries.values()].sort(compare);

  /** @param {Entry} entry */
  function put(entry) {
    const known = entries.get(entry.id);
    // A queued entry gets its place later, which what was written before does not know.
    if (known && (known.seq !== null || entry.seq === null)) return;
    if (known) chars -= charsOf(known);
    chars += charsOf(entry);
    entries.set(entry.id, entry);
    rows = null;
  }

  function clear() {
    entries.clear();
    [rows, cursor, hasPage, isFull, chars] = [null, null, false, false, 0];
  }

  function trim() {
    if (entries.size <= MAX_ENTRIES && chars <= MAX_CHARS) return;
    for (const entry of inOrder()) {
      if (entries.size <= 1 || (entries.size <= MAX_ENTRIES && chars <= MAX_CHARS)) break;
      entries.delete(entry.id);
      chars -= charsOf(entry);
    }
    // The pages before the first entry follow one that is no longer here.
    [rows, cursor, isFull] = [null, null, true];
  }

  /** @param {any} piece */
  function takePiece({ kind, text }) {
    progress = "";
    if (kind === "start") live = { text: "", reasoning: "", isCut: false };
    else {
      const { text: before, reasoning, isCut } = live ?? { text: "", reasoning: "", isCut: true };
      const all = (kind === "text" ? before : reasoning) + text;
      const kept = all.slice(-LIVE_CHARS);
      live = { text: before, reasoning, isCut: isCut || kept !== all, [kind]: kept };
    }
  }

  return {
    rows: () => (rows ??= shown = rowsOf(inOrder(), shown)),
    live: () => live,
    /** What the turn waits for. */
    progress: () => progress,
    cursor: () => cursor,
    /** Whether there is no room for earlier entries. */
    isFull: () => isFull,
    /** Takes the newest page. @param {Entry[]} page @param {string | null} next where the page before it is */
    newest(page, next) {
      const known = [...entries.values()];
      const last = Math.max(0, ...known.map(({ seq }) => seq ?? 0));
      const first = Math.min(...known.map(({ seq }) => seq ?? Infinity));
      const begin = page[0]?.seq ?? Infinity;
      // What is between is not here, so what is here is not the end of the thread.
      const isApart = entries.size > 0 && next !== null && begin > last + 1;
      if (isApart) clear();
      // Events may have come before the first page. Once there is no room for earlier entries, none are read.
      if (!isFull && (!hasPage || begin <= first)) [cursor, hasPage] = [next, true];
      // The pieces of an answer that was read are not shown beside it.
      if (page.some(({ id, role }) => OF_AGENT.has(role) && !entries.has(id))) live = null;
      page.forEach(put);
      trim();
    },
    /** Takes the page before the first entry. @param {Entry[]} page @param {string | null} next */
    earlier(page, next) {
      const more = page.reduce((sum, entry) => sum + charsOf(entry), 0);
      if (entries.size + page.length > MAX_ENTRIES || chars + more > MAX_CHARS) {
        [cursor, isFull] = [null, true];
        return;
      }
      page.forEach(put);
      cursor = next;
    },
    /** Takes an event of the thread's stream. @param {string} name @param {any} data */
    take(name, data) {
      if (name === "delta") takePiece(data);
      else if (name === "status") progress = data.message;
      else if (name === "thread_state") {
        if (data.state !== "processing") [live, progress] = [null, ""];
      } else if (data.role) {
        put(data);
        if (OF_AGENT.has(data.role)) [live, progress] = [null, ""];
        trim();
      }
    },
    /** Forgets the pieces: others may have been missed. */
    dropLive: () => void ([live, progress] = [null, ""]),
  };
}
