// When a routine fires next: in its own zone, as the server says it, and in the chosen one.

import { relative } from "../../format.js";
import { T } from "../../texts.js";
import { Time, html, now, zone } from "../../ui.js";
import { localTime } from "./words.js";

/** Whether both zones show the same time. @param {string} utc @param {string} offset */
function isYours(utc, offset) {
  const name = new Intl.DateTimeFormat("en-GB", { timeZone: zone.value, timeZoneName: "longOffset" }).formatToParts(Date.parse(utc))
    .find(({ type }) => type === "timeZoneName")?.value ?? "";
  return (name.replace("GMT", "") || "+00:00") === (offset === "UTC" ? "+00:00" : offset);
}

/** @param {{ at: { utc: string, local: string }, own?: string | null | undefined }} props `own` is the name of its zone */
export function Firing({ at: { utc, local }, own }) {
  const { text, offset } = localTime(local);
  return html`
    <span class="number">${text} ${own ?? offset}</span> <span class="note">(${!isYours(utc, offset) && html`<${Time} at=${utc} /> ${T.routine.yours}, `}${relative(Date.parse(utc), now.value)})</span>
  `;
}

/** @param {{ items: { utc: string, local: string }[], own?: string | null | undefined }} props */
export const Firings = ({ items, own }) => html`<ul class="times">${items.map((at) => html`<li key=${at.utc}><${Firing} at=${at} own=${own} /></li>`)}</ul>`;
