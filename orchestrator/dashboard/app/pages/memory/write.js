// Writes of documents, and the drafts of them.
//
// Owns that a document is replaced only by someone who has seen its version, and that no text that was typed is lost over one.

import { useState } from "preact/hooks";
import { ApiError, get, put } from "../../api.js";
import { drafts } from "../../session.js";

/** @typedef {import("../../api.js").schemas["MemoryDocument"]} MemoryDocument */

/** So often a text is added again to a document that others change at the same time. */
const MAX_TRIES = 3;

/** @param {number} version */
const tagOf = (version) => `"${version}"`;

/** @param {unknown} error */
export const isClash = (error) => error instanceof ApiError && error.status === 412;

/** @param {unknown} error */
export const isMissing = (error) => error instanceof ApiError && error.status === 404;

/** A document, or null if there is none. @param {string} path @param {AbortSignal} [signal] @returns {Promise<MemoryDocument | null>} */
export const readDocument = (path, signal) =>
  get("/api/memory", { query: { path }, signal }).catch((error) => {
    if (isMissing(error)) return null;
    throw error;
  });

/** Replaces a version of a document; null: there is none yet. @param {string} path @param {string} content @param {number | null} version */
export const writeDocument = (path, content, version) =>
  put("/api/memory", { query: { path }, body: { content }, ifMatch: version === null ? null : tagOf(version) });

/** A text with another one at its end, which begins on a new line: as tools add it. Pure. @param {string} content @param {string} added */
export const appended = (content, added) => `${content}${content === "" || content.endsWith("\n") ? "" : "\n"}${added}`;

/**
 * Adds a text at the end of a document. The result is called again after a failure that leaves open whether the text has arrived: it is
 * added once.
 * @param {string} path
 */
export function createAppender(path) {
  /** @type {{ version: number, content: string } | null} */
  let sent = null;
  return async (/** @type {string} */ text) => {
    for (let tries = 1; ; tries += 1) {
      const document = await readDocument(path);
      const hasArrived = sent !== null && document?.version === sent.version + 1 && document.content === sent.content && sent.content.endsWith(text);
      if (hasArrived) break;
      const content = appended(document?.content ?? "", text);
      sent = document && { version: document.version, content };
      try {
        await writeDocument(path, content, document?.version ?? null);
        break;
      } catch (error) {
        if (!isClash(error) || tries === MAX_TRIES) throw error;
      }
    }
    sent = null;
  };
}

/**
 * What is typed into a form, under a name in the storage of the tab. `isKept`: whether it is there.
 * @template {object} Draft
 * @param {string} name @param {Draft} start
 */
export function useDraft(name, start) {
  const [state, setState] = useState(() => ({ draft: /** @type {Draft} */ (drafts.get(name) ?? start), isKept: true }));
  return {
    ...state,
    /** @param {Partial<Draft>} values */
    change(values) {
      const draft = { ...state.draft, ...values };
      let isKept = true;
      try {
        drafts.set(name, draft);
      } catch {
        // The storage of a tab holds about 5 MB.
        isKept = false;
      }
      setState({ draft, isKept });
    },
    /** Forgets it, in the form as well. @param {Draft} [next] */
    clear(next = start) {
      drafts.remove(name);
      setState({ draft: next, isKept: true });
    },
  };
}
