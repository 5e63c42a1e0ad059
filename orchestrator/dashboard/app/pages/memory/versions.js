// The versions of a document that are kept, newest first, each with who wrote it.

import { get } from "../../api.js";
import { bytes, shortId } from "../../format.js";
import { generation } from "../../session.js";
import { T } from "../../texts.js";
import { Text, Time, html, useLoad } from "../../ui.js";
import { urlOf } from "./paths.js";

const PAGES = new Map([["job", "/jobs/"], ["run", "/runs/"], ["thread", "/chat/"]]);

/** The page of what an agent worked on, and a short name. Pure. @param {string} by `user:NAME`, `job:ID`, `run:ID` or `thread:ID` */
export function authorOf(by) {
  const at = by.indexOf(":");
  const [kind, id] = [by.slice(0, at), by.slice(at + 1)];
  const page = PAGES.get(kind);
  return page ? { text: `${kind} ${shortId(id)}`, href: `${page}${encodeURIComponent(id)}` } : { text: id || by, href: null };
}

/** @param {{ by: string }} props */
function Author({ by }) {
  const { text, href } = authorOf(by);
  return href ? html`<a href=${href}><${Text}>${text}<//></a>` : html`<${Text}>${text}<//>`;
}

/** @param {{ path: string, current: number }} props */
export function Versions({ path, current }) {
  const { value, status } = useLoad((signal) => get("/api/memory/versions", { query: { path }, signal }), [path, current, generation.value]);
  return html`
    ${status}
    ${value && html`
      <div class="wide" tabindex="0" role="group" aria-label=${T.memory.shows.versions}>
        <table><thead><tr>${T.memory.versionColumns.map((name) => html`<th key=${name}>${name}</th>`)}</tr></thead>
          <tbody>${value.items.map(({ version, bytes: size, created_at: at, by }) => html`<tr key=${version}>
            <td><a href=${urlOf(path, { version: version === current ? null : String(version) })}>${T.memory.version(version)}</a></td>
            <td class="number">${bytes(size)}</td><td><${Time} at=${at} /></td><td><${Author} by=${by} /></td></tr>`)}</tbody></table></div>`}
  `;
}
