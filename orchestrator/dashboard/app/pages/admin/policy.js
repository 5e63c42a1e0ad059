// The form of the tools' policy: from what the server has, and back. Pure.

/** @typedef {import("../../api.js").schemas["AdminToolPolicy"]} Policy */
/** `disabled` are names that there are, `others` any names. @typedef {{ disabled: string[], others: string, users: { user: string, tools: string }[] }} Draft */

const words = (/** @type {string} */ text) => [...new Set(text.split(/[\s,]+/).filter(Boolean))];

/** @param {Policy} policy @param {string[]} known @returns {Draft} */
export function draftOf({ disabled_tools: all = [], user_disabled_tools: users = {} }, known) {
  return {
    disabled: all.filter((name) => known.includes(name)),
    others: all.filter((name) => !known.includes(name)).join(" "),
    users: Object.entries(users).map(([user, tools]) => ({ user, tools: tools.join(" ") })),
  };
}

/** The policy, or null if a list has no user, or two have the same. @param {Draft} draft @returns {Policy | null} */
export function policyOf({ disabled, others, users }) {
  const named = users.map(({ user, tools }) => /** @type {[string, string[]]} */ ([user.trim(), words(tools)])).filter(([user, tools]) => user || tools.length > 0);
  const names = new Set(named.map(([user]) => user));
  if (names.has("") || names.size < named.length) return null;
  return {
    disabled_tools: [...new Set([...disabled, ...words(others)])].sort(),
    user_disabled_tools: Object.fromEntries(named.filter(([, tools]) => tools.length > 0)),
  };
}

/** The names that no tool has. @param {string[]} names @param {string[]} known */
export const unknownOf = (names, known) => names.filter((name) => name && !known.includes(name));
