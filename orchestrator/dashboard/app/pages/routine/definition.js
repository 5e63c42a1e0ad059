// The definition of a routine as its owner writes it, and what differs between two of them. Pure.
//
// Owns how a changed definition becomes a merge patch. Never checks a definition: the server does.

/** @typedef {import("../../api.js").schemas["Routine"]} Routine */
/** What is edited: the body of a request, which may be wrong. @typedef {Record<string, any>} Definition */

/** A definition that says nothing yet. @type {Definition} */
export const EMPTY = { name: "", enabled: true, trigger: { type: "cron", schedule: "" }, action: { type: "lightweight", prompt: "" } };

/** The fields that a patch replaces as a whole. */
const WHOLE = new Set(["trigger", "action"]);
const FIELDS = /** @type {const} */ (["name", "description", "enabled", "trigger", "action", "guardrails", "notify", "session", "wake_mode", "deliver",
  "post_to_main", "post_to_main_prefix", "persist_payload"]);

/** @param {unknown} value @returns {value is Record<string, any>} */
export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** Whether two values of JSON say the same. @param {any} one @param {any} other @returns {boolean} */
export function isSame(one, other) {
  if (Array.isArray(one)) return Array.isArray(other) && one.length === other.length && one.every((value, index) => isSame(value, other[index]));
  if (!isObject(one) || !isObject(other)) return one === other;
  const names = Object.keys(one);
  return names.length === Object.keys(other).length && names.every((name) => name in other && isSame(one[name], other[name]));
}

/** The definition of a routine, without its secrets. @param {Routine} routine @returns {Definition} */
export function definitionOf(routine) {
  const shown = (/** @type {unknown} */ value) => (isObject(value)
    ? Object.fromEntries(Object.entries(value).filter(([field]) => field !== "has_secret" && field !== "has_webhook_secret")) : value);
  return Object.fromEntries(FIELDS.filter((name) => (routine[name] ?? null) !== null).map((name) => [name, shown(routine[name])]));
}

/** The merge patch that makes one definition of another. What is left out is set to its default. @param {Definition} base @param {Definition} next */
export function patchOf(base, next) {
  /** @type {Definition} */
  const patch = {};
  for (const name of new Set([...Object.keys(base), ...Object.keys(next)])) {
    if (isSame(base[name], next[name])) continue;
    if (!(name in next)) patch[name] = null;
    else if (WHOLE.has(name) || !isObject(base[name]) || !isObject(next[name])) patch[name] = next[name];
    else patch[name] = patchOf(base[name], next[name]);
  }
  return patch;
}

/** What a definition has at a path such as `guardrails.retry.max_attempts`. @param {Definition} definition @param {string} path */
export const valueAt = (definition, path) => path.split(".").reduce((/** @type {any} */ value, name) => (isObject(value) ? value[name] : undefined), definition);

/**
 * The definition with another value at a path; `undefined` removes it.
 * @param {Definition} definition @param {string} path @param {unknown} value @returns {Definition}
 */
export function withValue(definition, path, value) {
  const [name = "", ...rest] = path.split(".");
  const { [name]: before, ...others } = definition;
  const next = rest.length === 0 ? value : withValue(isObject(before) ? before : {}, rest.join("."), value);
  if (next === undefined) return others;
  // Fields stay in their order.
  return name in definition ? { ...definition, [name]: next } : { ...others, [name]: next };
}

/** The single values of a definition, by their paths. @param {Definition} definition @param {string} [prefix] @returns {[string, unknown][]} */
function leaves(definition, prefix = "") {
  return Object.entries(definition).flatMap(([name, value]) => (isObject(value) && Object.keys(value).length > 0
    ? leaves(value, `${prefix}${name}.`) : [/** @type {[string, unknown]} */ ([prefix + name, value])]));
}

/** Where two definitions differ. @param {Definition} one @param {Definition} other @returns {{ field: string, one: unknown, other: unknown }[]} */
export function differences(one, other) {
  const [left, right] = [new Map(leaves(one)), new Map(leaves(other))];
  return [...new Set([...left.keys(), ...right.keys()])].sort()
    .map((field) => ({ field, one: left.get(field), other: right.get(field) }))
    .filter((pair) => !isSame(pair.one ?? null, pair.other ?? null));
}

/** Whether a definition has another value than its base at a field, as a patch would say it. @param {Definition} base @param {Definition} next @param {string} field */
export function isChanged(base, next, field) {
  const [part = ""] = field.split(".");
  const path = WHOLE.has(part) ? part : field;
  return !isSame(valueAt(base, path) ?? null, valueAt(next, path) ?? null);
}
