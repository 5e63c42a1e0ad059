// What only admins see: the system, the audit log, the policy of tools, the MCP servers. Each is a module in `admin/`.

import { Tabs } from "../parts.js";
import { place } from "../router.js";
import { who } from "../session.js";
import { T } from "../texts.js";
import { Copy, Heading, Text, html } from "../ui.js";
import { Audit } from "./admin/audit.js";
import { Mcp } from "./admin/mcp.js";
import { System } from "./admin/system.js";
import { Tools } from "./admin/tools.js";

export const title = T.admin.title;

const TABS = /** @type {const} */ (["system", "audit", "tools", "mcp"]);
const BODIES = { system: System, audit: Audit, tools: Tools, mcp: Mcp };

export default function Admin() {
  const name = TABS.find((one) => one === place.value.params["tab"]) ?? "system";
  const role = who.value?.role;
  if (role !== "admin") {
    return html`
      <${Heading}>${title}<//>
      <p class="failure"><${Text}>${T.admin.refused(role ?? "")}<//></p>
      <p>${T.admin.refusedNote}</p>
      <p class="line"><code>${T.admin.command}</code> <${Copy} text=${T.admin.command} name=${T.admin.command} /></p>
    `;
  }
  return html`
    <${Heading}>${title}<//>
    <${Tabs} name=${T.admin.parts} words=${T.admin.tabs} current=${name} path=${(/** @type {string} */ one) => `/admin/${one}`} />
    <${BODIES[name]} key=${name} />
  `;
}
