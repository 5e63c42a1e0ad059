// Settings of the user and of this browser: five parts, four of them modules in `settings/`.

import * as keys from "../keys.js";
import { Tabs } from "../parts.js";
import { place } from "../router.js";
import { who } from "../session.js";
import { ZoneSwitch, chooseTheme, theme } from "../shell.js";
import { T } from "../texts.js";
import { CopyAs, Heading, html, useSubject } from "../ui.js";
import { General } from "./settings/general.js";
import { Secrets } from "./settings/secrets.js";
import { Sessions } from "./settings/sessions.js";
import { Tools } from "./settings/tools.js";

// --- how this browser shows the dashboard: colours, the zone of times, single keys

export const Appearance = () => html`
  <p class="note">${T.settings.appearance.note}</p>
  <form class="appearance" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
    <fieldset><legend>${T.theme}</legend>
      ${Object.entries(T.themes).map(([name, text]) => html`
        <label key=${name} class="check"><input type="radio" name="theme" checked=${theme.value === name} onChange=${() => chooseTheme(name)} />${text}</label>`)}</fieldset>
    <fieldset><legend>${T.zone}</legend><${ZoneSwitch} /><p class="note">${T.settings.appearance.zoneNote} <a href="/settings/general">${T.settings.tabs.general}</a></p></fieldset>
    <fieldset><legend>${T.settings.appearance.keys}</legend>
      <label class="check"><input type="checkbox" checked=${keys.isOn.value} onChange=${(/** @type {any} */ event) => keys.setOn(event.target.checked)} />${T.keys.use}</label>
      <p><button type="button" class="link" onClick=${() => (keys.isListOpen.value = true)}>${T.settings.appearance.listKeys}</button></p></fieldset>
  </form>
`;

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
    <${Tabs} name=${T.settings.parts} words=${T.settings.tabs} current=${name} path=${(/** @type {string} */ one) => `/settings/${one}`} />
    ${isViewer && name !== "appearance" && html`<p class="note">${T.settings.viewer}</p>`}
    <${BODIES[name]} key=${name} canWrite=${!isViewer} />
    ${commands && html`<${CopyAs} ...${commands} />`}
  `;
}
