// Settings of the user and of this browser: five parts, each a module in `settings/`.

import { place } from "../router.js";
import { who } from "../session.js";
import { T } from "../texts.js";
import { CopyAs, Heading, html, useSubject } from "../ui.js";
import { Appearance } from "./settings/appearance.js";
import { General } from "./settings/general.js";
import { Secrets } from "./settings/secrets.js";
import { Sessions } from "./settings/sessions.js";
import { Tools } from "./settings/tools.js";

export const title = T.settings.title;

const TABS = /** @type {const} */ (["general", "tools", "secrets", "sessions", "appearance"]);
const BODIES = { general: General, tools: Tools, secrets: Secrets, sessions: Sessions, appearance: Appearance };
/** What does the same on the command line and by the API. @type {Record<string, { cli: string, path: string } | undefined>} */
const COMMANDS = {
  general: { cli: "gantry settings show", path: "/api/settings" },
  tools: { cli: "gantry tool list", path: "/api/tools" },
  secrets: { cli: "gantry secret ls", path: "/api/secrets" },
};

export default function Settings() {
  const given = place.value.params["tab"];
  const name = TABS.find((one) => one === given) ?? "general";
  const isViewer = who.value?.role === "viewer";
  const commands = COMMANDS[name];
  useSubject(`${title}: ${T.settings.tabs[name]}`);
  return html`
    <${Heading}>${title}<//>
    <nav class="tabs" aria-label=${T.settings.parts}>
      ${TABS.map((one) => html`<a key=${one} href=${`/settings/${one}`} aria-current=${one === name ? "page" : undefined}>${T.settings.tabs[one]}</a>`)}
    </nav>
    ${isViewer && name !== "appearance" && html`<p class="note">${T.settings.viewer}</p>`}
    <${BODIES[name]} key=${name} canWrite=${!isViewer} />
    ${commands && html`<${CopyAs} ...${commands} />`}
  `;
}
