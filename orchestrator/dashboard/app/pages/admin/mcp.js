// The MCP servers of the configuration and their tools. A definition that its server has changed is shown against the approved one.

import { useMemo } from "preact/hooks";
import { get, onProblem, post } from "../../api.js";
import { ConfirmButton } from "../../parts.js";
import { generation } from "../../session.js";
import { T } from "../../texts.js";
import { Copy, CopyAs, Empty, Icon, Problem, Text, Time, announce, html, marked, useDoing, useLoad } from "../../ui.js";
import { Code } from "../../diff.js";

// --- two texts line by line: what was removed, what was added, what stayed. Pure

/** @typedef {import("../../diff.js").Line} Line */

/** So many pairs of lines are compared. */
const MAX_PAIRS = 1_000_000;

/**
 * The lines of both texts in one list, or null if they are too many. The longest common part stays.
 * @param {string} before @param {string} after @returns {Line[] | null}
 */
export function compare(before, after) {
  const [old, next] = [before.split("\n"), after.split("\n")];
  if (old.length * next.length > MAX_PAIRS) return null;
  const width = next.length + 1;
  /** The length of the common part of what follows line `i` and line `j`. */
  const common = new Uint32Array((old.length + 1) * width);
  const at = (/** @type {number} */ i, /** @type {number} */ j) => common[i * width + j] ?? 0;
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = next.length - 1; j >= 0; j -= 1) common[i * width + j] = old[i] === next[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
  }
  /** @type {Line[]} */
  const found = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < next.length) {
    const [one, other] = [old[i], next[j]];
    if (one !== undefined && one === other) found.push({ kind: "same", text: one, before: ++i, after: ++j });
    else if (one !== undefined && (other === undefined || at(i + 1, j) >= at(i, j + 1))) found.push({ kind: "removed", text: one, before: ++i, after: null });
    else found.push({ kind: "added", text: other ?? "", before: null, after: ++j });
  }
  return found;
}

/** JSON as text of which each part has its own line; the parts of strings, too: descriptions are long. @param {unknown} value */
export const linesOf = (value) => JSON.stringify(value, null, 2).replaceAll("\\n", "\\n\n");

/** @typedef {import("../../api.js").schemas["McpServerSummary"]} Server */
/** @typedef {import("../../api.js").schemas["McpToolSummary"]} Tool */

const LOOKS = { approved: ["completed", "completed"], withheld: ["stuck", "stuck"], refused: ["failed", "failed"] };
const MARKS = /** @type {Record<string, string>} */ ({ added: "+", removed: "−" });

/** @param {{ tool: Tool }} props */
function Change({ tool }) {
  const after = linesOf(tool.definition ?? null);
  const found = useMemo(() => compare(linesOf(tool.approved_definition ?? null), after), [tool.definition, tool.approved_definition]);
  const name = T.mcp.change(tool.name);
  if (!found) return html`<p class="banner">${T.mcp.tooLong}</p><pre tabindex="0" role="group" aria-label=${name}><bdi dir="ltr">${marked(after)}</bdi></pre>`;
  return html`
    <div class="diff" tabindex="0" role="group" aria-label=${name}><table><tbody>
      ${found.map((line, index) => html`<tr key=${index} class=${line.kind}>
        <td class="number">${line.before}</td><td class="number">${line.after}</td><td class="mark">${MARKS[line.kind] ?? ""}</td>
        <td class="code"><${Code} line=${line.text} /></td></tr>`)}
    </tbody></table></div>
  `;
}

/** The approval names the digest of the definition that is shown. @param {{ server: string, tool: Tool, again: () => void }} props */
function Approve({ server, tool, again }) {
  const { isBusy, error, run } = useDoing();
  const send = () => post("/api/admin/mcp/{server}/approve", { path: { server }, body: { tool: tool.name, digest: tool.digest } });
  // The server may have changed it once more.
  const approve = () => run(() => send().then(() => (announce(T.mcp.statuses.approved), again()), onProblem(409, again)));
  return html`
    <${Problem} error=${error} />
    <${ConfirmButton} name=${T.mcp.approve} title=${T.mcp.question(tool.name)} note=${T.mcp.questionNote} isDisabled=${isBusy} onYes=${approve}><span class="hidden">: <${Text}>${tool.name}<//></span><//>
  `;
}

/** @param {{ server: string, tool: Tool, again: () => void }} props */
function ToolItem({ server, tool, again }) {
  const [icon, color] = LOOKS[tool.status] ?? LOOKS.refused;
  return html`
    <li class="item">
      <p class="line"><strong><${Text}>${tool.name}<//></strong> <span class="state ${color}"><${Icon} name=${icon} />${T.mcp.statuses[tool.status] ?? tool.status}</span>
        ${tool.reason && html`<span class="note"><${Text}>${tool.reason}<//></span>`}</p>
      <p class="note line">${tool.first_seen_at && html`<span>${T.mcp.seen} <${Time} at=${tool.first_seen_at} /></span>`}
        ${tool.approved_at && html`<span>${T.mcp.approved} <${Time} at=${tool.approved_at} /> ${tool.approved_by && html`${T.mcp.by} <${Text}>${tool.approved_by}<//>`}</span>`}
        ${tool.digest && html`<span>${T.mcp.digest} <code title=${tool.digest}>${tool.digest.slice(0, 8)}…</code> <${Copy} text=${tool.digest} name=${tool.digest.slice(0, 8)} /></span>`}</p>
      ${tool.status === "withheld" && html`<${Change} tool=${tool} /><${Approve} server=${server} tool=${tool} again=${again} />`}
    </li>
  `;
}

/** @param {{ server: Server, again: () => void }} props */
const ServerPart = ({ server, again }) => html`
  <section aria-label=${server.name}>
    <h2><${Text}>${server.name}<//></h2>
    <p class="note"><${Text}>${server.transport} ${server.address}<//> · ${T.mcp.requirements[server.requirement] ?? server.requirement} · ${T.mcp.connections(server.connections)}</p>
    ${server.error && html`<p class="failure"><${Text}>${server.error}<//></p>`}
    ${server.stderr && html`<details class="more"><summary>${T.mcp.output}</summary><pre><${Text}>${server.stderr}<//></pre></details>`}
    ${server.tools.length === 0 ? html`<p class="note">${T.mcp.noTools}</p>`
      : html`<ul class="rows">${server.tools.map((tool) => html`<${ToolItem} key=${tool.name} server=${server.name} tool=${tool} again=${again} />`)}</ul>`}
  </section>
`;

export function Mcp() {
  const { value, again, status } = useLoad((signal) => get("/api/admin/mcp", { signal }), [generation.value]);
  return html`
    ${status}
    ${value && value.items.length === 0 && html`<${Empty}><p>${T.mcp.none}</p><//>`}
    ${value?.items.map((server) => html`<${ServerPart} key=${server.name} server=${server} again=${again} />`)}
    <${CopyAs} cli="gantry admin mcp list" path="/api/admin/mcp" />
  `;
}
