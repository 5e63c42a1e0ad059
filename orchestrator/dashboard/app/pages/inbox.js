// What waits for the user, what was decided, and news: three lists, each a module in `inbox/`.

import { useEffect } from "preact/hooks";
import { place } from "../router.js";
import { generation } from "../session.js";
import { unread, waiting, wantUnread } from "../store.js";
import { T } from "../texts.js";
import { Heading, html } from "../ui.js";
import { News } from "./inbox/news.js";
import { Resolved } from "./inbox/resolved.js";
import { Waiting } from "./inbox/waiting.js";

export const title = T.inbox.title;

const TABS = /** @type {const} */ (["waiting", "resolved", "news"]);
const BODIES = { waiting: Waiting, resolved: Resolved, news: News };

/** @param {{ current: string }} props */
function Tabs({ current }) {
  const counted = { waiting: waiting.value, resolved: 0, news: unread.value?.count ?? 0 };
  const path = (/** @type {string} */ name) => (name === "waiting" ? "/inbox" : `/inbox?tab=${name}`);
  return html`
    <nav class="tabs" aria-label=${T.inbox.parts}>
      ${TABS.map((name) => html`<a key=${name} href=${path(name)} aria-current=${name === current ? "page" : undefined}>
        ${T.inbox.tabs[name]}${counted[name] > 0 && ` (${counted[name]})`}</a>`)}
    </nav>
  `;
}

export default function Inbox() {
  const name = TABS.find((one) => one === place.value.query.get("tab")) ?? "waiting";
  useEffect(() => wantUnread(), [generation.value]);
  return html`
    <${Heading}>${title}<//>
    <${Tabs} current=${name} />
    <${BODIES[name]} key=${name} />
  `;
}
