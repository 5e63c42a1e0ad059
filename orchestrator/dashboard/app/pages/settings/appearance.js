// How this browser shows the dashboard: colours, the zone of times, single keys.

import * as keys from "../../keys.js";
import { ZoneSwitch, chooseTheme, theme } from "../../shell.js";
import { T } from "../../texts.js";
import { html } from "../../ui.js";

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
