// What a job has changed, as it was last read: if nothing is new, a repeated read transfers nothing.

import { address, getChanged } from "../../api.js";
import { generation } from "../../session.js";
import { useLoad } from "../../ui.js";

/** @typedef {import("../../api.js").schemas["FileChanges"]} FileChanges */

/** Answers that are kept; each has at most 1 MiB of diffs. */
const MAX_KEPT = 4;

/** The last answers by address. @type {Map<string, { tag: string, value: FileChanges }>} */
const kept = new Map();

/** @param {string} id @param {string} within a file or a directory, or the whole workspace @param {AbortSignal} signal @returns {Promise<FileChanges>} */
async function read(id, within, signal) {
  const options = { path: { id }, query: within ? { path: within } : {} };
  const url = address("/api/jobs/{id}/changes", options);
  const before = kept.get(url);
  const { content, tag } = await getChanged("/api/jobs/{id}/changes", { ...options, signal }, before?.tag ?? null);
  const value = content ?? before?.value;
  if (!value) throw new Error("an answer without content");
  kept.delete(url);
  if (tag) kept.set(url, { tag, value });
  for (const oldest of kept.keys()) if (kept.size > MAX_KEPT) kept.delete(oldest);
  return value;
}

/** The changes of a job, or of a part of its workspace. @param {{ id: string, state: string }} job @param {string} [within] */
export const useChanges = ({ id, state }, within = "") => useLoad((signal) => read(id, within, signal), [id, within, state, generation.value]);
