// Memory: the tree of the user's documents, and one of them, or the form of a new one. The parts are modules in `memory/`.

import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { bindRows } from "../keys.js";
import { place } from "../router.js";
import { who } from "../session.js";
import { T } from "../texts.js";
import { CopyAs, Empty, Heading, html } from "../ui.js";
import { Document } from "./memory/document.js";
import { NewDocument } from "./memory/edit.js";
import { Tree } from "./memory/tree.js";

export const title = T.memory.title;

/** Entries and directories that are not inside of a closed one. */
const ROWS = ".tree a.open:not(details:not([open]) *), .tree summary:not(details:not([open]) details summary)";

/** @param {string} text */
const quoted = (text) => (/^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** Gives the focus to what has opened, if it was in the tree or on what is gone. @param {string} shown names what is open */
function useFocus(shown) {
  const before = useRef(shown);
  useLayoutEffect(() => {
    if (before.current === shown) return;
    before.current = shown;
    const focused = document.activeElement;
    if (focused && focused !== document.body && !focused.closest(".tree")) return;
    /** @type {HTMLElement | null} */ (document.querySelector(".document h2[tabindex]") ?? document.querySelector("h1"))?.focus();
  }, [shown]);
}

export default function Memory() {
  const { params: { path = "" }, query } = place.value;
  const [changes, setChanges] = useState(0);
  const onChange = () => setChanges((count) => count + 1);
  useLayoutEffect(() => bindRows(ROWS), []);
  useFocus(`${query.get("show")} ${path}`);
  const canWrite = who.value?.role !== "viewer";
  const isNew = canWrite && path === "" && query.get("show") === "new";
  const isOpen = path !== "" || isNew;
  return html`
    <div class="line"><${Heading}>${title}<//> ${canWrite && html`<a class="button" href="/memory?show=new">${T.memory.new}</a>`}</div>
    ${!canWrite && html`<p class="note">${T.memory.viewer}</p>`}
    <div class="memory ${isOpen ? "open" : ""}">
      <${Tree} current=${path} changes=${changes} />
      <section class="document" aria-label=${T.memory.document}>
        ${isOpen && html`<p class="back"><a href="/memory">${T.memory.all}</a></p>`}
        ${isNew ? html`<${NewDocument} onChange=${onChange} />`
          : path ? html`<${Document} key=${path} path=${path} canWrite=${canWrite} onChange=${onChange} />`
          : html`<${Empty}><p>${T.memory.choose}</p><p>${T.memory.what}</p><//>`}
      </section>
    </div>
    ${path ? html`<${CopyAs} cli=${`gantry memory cat ${quoted(path)}`} path=${`/api/memory?${new URLSearchParams({ path })}`} />`
      : html`<${CopyAs} cli="gantry memory ls" path="/api/memory/tree" />`}
  `;
}
