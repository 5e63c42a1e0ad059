// The last runs of a routine as bars: as high as they took long, with a form for what was skipped, missed or failed.
//
// They are for the eye only: whoever uses this shows the same runs as a list or a table.

import { useMemo } from "preact/hooks";
import { go } from "../../router.js";
import { T } from "../../texts.js";
import { html, now } from "../../ui.js";
import { short, tookMs, whyOf } from "./words.js";

/** @typedef {import("../../store.js").Run} Run */

const LOWEST = 0.12;

/** How high a bar is, from 0 to 1. Those of runs that did not start are low. Pure. @param {number | null} ms @param {number} longest */
export const heightOf = (ms, longest) => (ms === null || longest === 0 ? LOWEST : LOWEST + (1 - LOWEST) * Math.min(1, ms / longest));

/** @param {{ run: Run, ms: number | null, longest: number, x: number, size: { width: number, height: number } }} props */
function Bar({ run, ms, longest, x, size: { width, height } }) {
  const high = Math.round(heightOf(ms, longest) * height);
  const [left, right, top] = [x + 1, x + width - 1, height - high];
  const words = [T.runs.statuses[run.status], ms === null ? "" : short(ms), whyOf(run)].filter(Boolean).join(" · ");
  // A cross over what failed, so that it is not the colour alone.
  const middle = (left + right) / 2;
  const cross = Math.min(3, width / 3);
  const at = Math.max(cross, top - cross - 1);
  return html`
    <g class="bar ${run.status}" data-run=${run.id}>
      <title>${words}</title>
      <rect class="back" x=${x} y="0" width=${width} height=${height} />
      <rect class="front" x=${left} y=${top} width=${right - left} height=${high} />
      ${run.status === "failed" && html`<path d=${`m${middle - cross} ${at - cross} ${2 * cross} ${2 * cross}m0 ${-2 * cross} ${-2 * cross} ${2 * cross}`} />`}
    </g>
  `;
}

/** @param {{ runs: Run[], width: number, height: number, isSmall?: boolean }} props the oldest run first; sizes of one bar */
export function Bars({ runs, width, height, isSmall = false }) {
  // Only a run that is in progress changes with the time.
  const isRunning = runs.some(({ status }) => status === "running");
  const present = isRunning ? now.value : 0;
  const times = useMemo(() => runs.map((run) => tookMs(run, present)), [runs, present]);
  const longest = Math.max(0, ...times.map((ms) => ms ?? 0));
  const onClick = (/** @type {any} */ event) => {
    const id = event.target.closest?.("[data-run]")?.getAttribute("data-run");
    if (id) go(`/runs/${id}`);
  };
  const whole = Math.max(1, runs.length) * width;
  return html`
    <svg class="bars" aria-hidden="true" viewBox=${`0 0 ${whole} ${height}`} width=${whole} height=${height} onClick=${isSmall ? undefined : onClick}>
      ${runs.map((run, index) => html`<${Bar} key=${run.id} run=${run} ms=${times[index] ?? null} longest=${longest} x=${index * width} size=${{ width, height }} />`)}
    </svg>
  `;
}
