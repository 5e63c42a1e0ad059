// What is shown for a URL that is no page.

import { place } from "../router.js";
import { T } from "../texts.js";
import { Heading, Text, html } from "../ui.js";

export const title = T.missing.title;

export default function Missing() {
  return html`
    <${Heading}>${T.missing.title}<//>
    <p><${Text}>${T.missing.text(place.value.path)}<//></p>
    <p><a href="/">${T.missing.home}</a></p>
  `;
}
