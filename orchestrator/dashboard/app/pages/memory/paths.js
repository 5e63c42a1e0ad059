// Addresses of documents, and their paths as a tree. Pure.

import { encodePath } from "../job/code.js";

/** @typedef {import("../../api.js").schemas["MemoryEntry"]} MemoryEntry */
/** @typedef {{ path: string, directories: Map<string, Directory>, entries: MemoryEntry[] }} Directory */

/** The page of a document; a search stays beside it. @param {string} path @param {Record<string, string | null | undefined>} [query] */
export function urlOf(path, query = {}) {
  const pairs = Object.entries(query).flatMap(([name, value]) => (value ? [[name, value]] : []));
  const search = pairs.length > 0 ? `?${new URLSearchParams(pairs)}` : "";
  return `/memory/${encodePath(path)}${search}`;
}

/** The last part of a path. @param {string} path */
export const nameOf = (path) => path.split("/").at(-1) ?? path;

/** Entries by directory, each in the order in which they come. @param {MemoryEntry[]} entries @returns {Directory} */
export function treeOf(entries) {
  /** @type {Directory} */
  const top = { path: "", directories: new Map(), entries: [] };
  for (const entry of entries) {
    let at = top;
    for (const name of entry.path.split("/").slice(0, -1)) {
      let next = at.directories.get(name);
      if (!next) {
        next = { path: `${at.path}${name}/`, directories: new Map(), entries: [] };
        at.directories.set(name, next);
      }
      at = next;
    }
    at.entries.push(entry);
  }
  return top;
}

/** How many documents are in a directory and below it. @param {Directory} directory @returns {number} */
export const countOf = ({ directories, entries }) => entries.length + [...directories.values()].reduce((sum, one) => sum + countOf(one), 0);
