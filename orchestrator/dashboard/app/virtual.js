// Rows of one height, of which only those in view are in the page.
//
// Owns the place: it stays when rows are added in front, follows the end, and comes to the selected row. Never knows what a row shows.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { html } from "./ui.js";

/** Rows that are drawn before and after those in view. */
const MARGIN = 10;
/** So near to the end, new rows are followed. */
const NEAR_PX = 40;

/**
 * Which rows are drawn. Pure.
 * @param {number} top @param {number} height @param {number} rowHeight @param {number} count
 */
export function visible(top, height, rowHeight, count) {
  const from = Math.max(0, Math.floor(top / rowHeight) - MARGIN);
  const to = Math.min(count, Math.ceil((top + height) / rowHeight) + MARGIN);
  return { from: Math.min(from, count), to: Math.max(to, 0) };
}

const nothing = () => {};

/**
 * `rows` have a `seq`, by which they are found again. The row `selected` comes into view; the row `active` can have the focus, so it stays
 * in the page (without one, the first row in view is active). `onTop` is called when the first row comes into view. Rows without anything
 * that takes the focus need `isFocusable`, so that keys scroll them.
 * @template {{ seq: number }} Row
 * @param {{
 *   rows: Row[], rowHeight: number, label: string, draw: (row: Row, index: number, isActive: boolean) => any,
 *   selected?: number | null, active?: number | null, isFocusable?: boolean,
 *   isFollowing?: boolean, onFollow?: (isFollowing: boolean) => void, onTop?: () => void
 * }} props
 */
export function VirtualRows({ rows, rowHeight, label, draw, selected = null, active = null, isFocusable = false, isFollowing = false, onFollow = nothing, onTop = nothing }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [view, setView] = useState({ top: 0, height: 600 });
  /** The first row in view and how far it is scrolled, to find the place again. */
  const anchor = useRef(/** @type {{ seq: number, offset: number } | null} */ (null));
  const indexOf = (/** @type {number | null} */ seq) => (seq === null ? -1 : rows.findIndex((row) => row.seq === seq));

  const read = () => {
    const element = box.current;
    // Nothing can be said about the place in an empty or a hidden list.
    if (!element || rows.length === 0 || element.clientHeight === 0) return;
    const { scrollTop: top, clientHeight: height, scrollHeight } = element;
    const row = rows[Math.floor(top / rowHeight)];
    anchor.current = row ? { seq: row.seq, offset: top % rowHeight } : null;
    setView((before) => (before.top === top && before.height === height ? before : { top, height }));
    onFollow(scrollHeight - top - height < NEAR_PX);
    if (top < rowHeight * MARGIN) onTop();
  };

  const restore = () => {
    const element = box.current;
    if (!element || element.clientHeight === 0) return;
    const height = element.clientHeight;
    setView((before) => (before.height === height ? before : { ...before, height }));
    if (isFollowing) element.scrollTop = element.scrollHeight;
    else if (anchor.current) {
      const { seq, offset } = anchor.current;
      const index = rows.findIndex((row) => row.seq >= seq);
      if (index >= 0) element.scrollTop = index * rowHeight + offset;
    }
  };
  useLayoutEffect(restore, [rows.length, rows[0]?.seq, isFollowing]);

  // The list may have been hidden, which forgets the place.
  const resized = useRef(nothing);
  resized.current = () => (restore(), read());
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(() => resized.current());
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  const chosen = indexOf(selected);
  useEffect(() => {
    const element = box.current;
    if (!element || chosen < 0) return;
    const top = chosen * rowHeight;
    if (top < element.scrollTop || top + rowHeight > element.scrollTop + element.clientHeight) element.scrollTop = top - element.clientHeight / 3;
  }, [selected, chosen < 0]);

  const { from, to } = visible(view.top, view.height, rowHeight, rows.length);
  const named = indexOf(active);
  const current = named >= 0 ? named : Math.min(rows.length - 1, Math.ceil(view.top / rowHeight));
  const at = (/** @type {Row} */ row, /** @type {number} */ index) => html`
    <div key=${row.seq} class="virtual-row" role="listitem" aria-setsize=${rows.length} aria-posinset=${index + 1}
      style=${{ transform: `translateY(${index * rowHeight}px)`, height: `${rowHeight}px` }}>${draw(row, index, index === current)}</div>`;
  // In one list, so that the row with the focus stays the same element.
  const drawn = rows.slice(from, to).map((row, index) => at(row, from + index));
  const kept = rows[current];
  if (kept && (current < from || current >= to)) drawn.push(at(kept, current));
  return html`
    <div class="virtual" ref=${box} onScroll=${read} role="list" aria-label=${label} tabindex=${isFocusable ? 0 : -1}>
      <div class="virtual-space" style=${{ height: `${rows.length * rowHeight}px` }}>
        ${drawn}
      </div>
    </div>
  `;
}
