// A file in windows: each is read when it is asked for, and only the last ones are kept.
//
// Owns where a window ends, the numbers of its lines, and whether the file has changed meanwhile. Never reads more than it is asked for.

import { useEffect, useRef, useState } from "preact/hooks";
import { readPart } from "../../api.js";
import { T } from "../../texts.js";

/** @typedef {import("../../api.js").Version} Version */
/**
 * Lines of a file: bytes `from` to `to`, of which `first` is the number of the first line. The last line of the one before may go on in it.
 * @typedef {{ from: number, to: number, first: number, lines: string[], isCut: boolean }} Part
 * @typedef {{ parts: Part[], head: Uint8Array<ArrayBuffer> | null, version: Version | null, isChanged: boolean, isBusy: boolean, error: Error | null }} Windows
 */

export const WINDOW_BYTES = 2 * 1024 * 1024;
/** A window of short lines ends before. */
const MAX_LINES = 100_000;
/** Windows that are kept. */
const MAX_PARTS = 4;
const NEWLINE = 10;

/**
 * How many bytes of a window are shown: up to its last line, or at least its last character. Pure.
 * @param {Uint8Array} content @param {boolean} isLast
 */
export function usable(content, isLast) {
  let [end, count] = [0, 0];
  for (let at = content.indexOf(NEWLINE); at >= 0 && count < MAX_LINES; at = content.indexOf(NEWLINE, end)) {
    end = at + 1;
    count += 1;
  }
  if (count === MAX_LINES) return end;
  if (isLast) return content.length;
  if (end > 0) return end;
  // A line that is longer than the window.
  return lastCharacter(content);
}

/** The end of the last whole character. @param {Uint8Array} content */
function lastCharacter(content) {
  for (let back = 1; back <= Math.min(3, content.length); back += 1) {
    const byte = content[content.length - back] ?? 0;
    if ((byte & 0xc0) === 0x80) continue;
    const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return length > back ? content.length - back : content.length;
  }
  return content.length;
}

/**
 * The lines of the window that follows `before`. Pure.
 * @param {Part | undefined} before @param {Uint8Array} content @param {number} size of the file @returns {Part}
 */
export function partAfter(before, content, size) {
  const from = before?.to ?? 0;
  const used = usable(content, from + content.length >= size);
  const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(content.subarray(0, used));
  const isCut = used > 0 && !text.endsWith("\n") && from + used < size;
  const lines = text === "" ? [] : text.replace(/\n$/, "").split("\n");
  const first = before ? before.first + before.lines.length : 1;
  // The rest of a line of which the beginning is shown.
  if (before?.isCut) lines.shift();
  return { from, to: from + used, first, lines, isCut };
}

/** Whether two answers are about the same content, as far as it is known. Pure. @param {Version} one @param {Version} other */
export const isSame = (one, other) =>
  one.etag && other.etag ? one.etag === other.etag : one.size === other.size && one.modified === other.modified;

/** @type {Windows} */
const NOTHING = { parts: [], head: null, version: null, isChanged: false, isBusy: true, error: null };

/** Reads a file from its beginning, a window at a time. @param {string} url @param {unknown} generation */
export function useFile(url, generation) {
  const [windows, setWindows] = useState(NOTHING);
  const latest = useRef(windows);
  latest.current = windows;
  const over = useRef(new AbortController());

  /** @param {Windows} before */
  async function readAfter(before) {
    const { signal } = over.current;
    const set = (/** @type {Partial<Windows>} */ change) => signal.aborted || setWindows({ ...before, isBusy: false, error: null, ...change });
    setWindows({ ...before, isBusy: true });
    const last = before.parts.at(-1);
    try {
      const { content, version } = await readPart(url, { from: last?.to ?? 0, most: WINDOW_BYTES }, signal);
      if (before.version && !isSame(before.version, version)) return set({ isChanged: true });
      set({ version, head: before.head ?? content, parts: [...before.parts, partAfter(last, content, version.size)].slice(-MAX_PARTS) });
    } catch (error) {
      if (!signal.aborted) set({ error: /** @type {Error} */ (error) });
    }
  }

  function restart() {
    over.current.abort();
    over.current = new AbortController();
    readAfter(NOTHING);
  }
  useEffect(() => {
    restart();
    return () => over.current.abort();
  }, [url, generation]);

  const { parts, version, isChanged } = windows;
  const last = parts.at(-1);
  return {
    ...windows,
    hasMore: version !== null && last !== undefined && last.to < version.size && !isChanged,
    readMore: () => void (latest.current.isBusy || readAfter(latest.current)),
    restart,
  };
}

/**
 * The whole content of a file, which is not long.
 * @param {string} url @param {Version} version @param {Uint8Array<ArrayBuffer>} head what is read already @param {AbortSignal} signal
 */
export async function readWhole(url, version, head, signal) {
  const pieces = [head];
  for (let from = head.length; from < version.size; from += WINDOW_BYTES) {
    const read = await readPart(url, { from, most: WINDOW_BYTES }, signal);
    // Pieces of two versions are no image.
    if (!isSame(version, read.version)) throw new Error(T.files.isChanged);
    pieces.push(read.content);
  }
  return new Blob(pieces);
}
