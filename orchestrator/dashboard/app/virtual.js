// Rows of one height, of which only those in view are in the page.

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

/**
 * `rows` have a `seq`, by which the place is kept when rows are added in front. `onTop` is called when the first row comes into view.
 * @template {{ seq: number }} Row
 * @param {{
 *   rows: Row[], rowHeight: number, label: string, draw: (row: Row, index: number) => any, selected?: number | null,
 *   isFollowing: boolean, onFollow: (isFollowing: boolean) => void, onTop?: () => void
 * }} props
 */
export function VirtualRows({ rows, rowHeight, label, draw, selected = null, isFollowing, onFollow, onTop }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [view, setView] = useState({ top: 0, height: 600 });
  /** The first row in view and how far it is scrolled, to find the place again. */
  const anchor = useRef(/** @type {{ seq: number, offset: number } | null} */ (null));

  const read = () => {
    const element = box.current;
    if (!element) return;
    const { scrollTop: top, clientHeight: height, scrollHeight } = element;
    const row = rows[Math.floor(top / rowHeight)];
    anchor.current = row ? { seq: row.seq, offset: top % rowHeight } : null;
    setView((before) => (before.top === top && before.height === height ? before : { top, height }));
    onFollow(scrollHeight - top - height < NEAR_PX);
    if (top < rowHeight * MARGIN) onTop?.();
  };

  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    if (isFollowing) element.scrollTop = element.scrollHeight;
    else if (anchor.current) {
      const { seq, offset } = anchor.current;
      const index = rows.findIndex((row) => row.seq >= seq);
      if (index >= 0) element.scrollTop = index * rowHeight + offset;
    }
  }, [rows, rows.length, isFollowing]);

  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const observer = new ResizeObserver(read);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);

  useEffect(() => {
    const element = box.current;
    const index = selected === null ? -1 : rows.findIndex(({ seq }) => seq === selected);
    if (!element || index < 0) return;
    const top = index * rowHeight;
    if (top < element.scrollTop || top + rowHeight > element.scrollTop + element.clientHeight) element.scrollTop = top - element.clientHeight / 3;
  }, [selected]);

  const { from, to } = visible(view.top, view.height, rowHeight, rows.length);
  const shown = rows.slice(from, to);
  // The selected row has the focus, so it stays in the page.
  const other = selected === null ? undefined : rows.findIndex(({ seq }) => seq === selected);
  const isOutside = other !== undefined && other >= 0 && (other < from || other >= to);
  const at = (/** @type {Row} */ row, /** @type {number} */ index) => html`
    <div key=${row.seq} class="virtual-row" role="listitem" aria-setsize=${rows.length} aria-posinset=${index + 1}
      style=${{ transform: `translateY(${index * rowHeight}px)`, height: `${rowHeight}px` }}>${draw(row, index)}</div>`;
  return html`
    <div class="virtual" ref=${box} onScroll=${read} role="list" aria-label=${label} tabindex="-1">
      <div class="virtual-space" style=${{ height: `${rows.length * rowHeight}px` }}>
        ${shown.map((row, index) => at(row, from + index))}
        ${isOutside && at(/** @type {Row} */ (rows[other]), other)}
      </div>
    </div>
  `;
}
