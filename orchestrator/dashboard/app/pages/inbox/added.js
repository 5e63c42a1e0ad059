// The note that a list has new items, which keeps its room while there are none: nothing moves when it comes.

import { T } from "../../texts.js";
import { html } from "../../ui.js";

/** @param {{ count: number, show: () => void }} props */
export const Added = ({ count, show }) => html`
  <p class="added-items">${count > 0 && html`<button type="button" onClick=${show}>${T.jobs.added(count)}</button>`}</p>
`;
