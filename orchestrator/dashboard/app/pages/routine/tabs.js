// The way between the lists of routines and of runs, and the schedule.

import { place } from "../../router.js";
import { T } from "../../texts.js";
import { html } from "../../ui.js";

export const Tabs = () => html`
  <nav class="tabs" aria-label=${T.routines.parts}>
    ${Object.entries(T.routines.tabs).map(([path, text]) => html`<a key=${path} href=${path} aria-current=${place.value.path === path ? "page" : undefined}>${text}</a>`)}
  </nav>
`;
