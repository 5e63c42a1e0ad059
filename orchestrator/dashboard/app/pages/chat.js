// Chats: the threads of the user, and one of them.

import { place } from "../router.js";
import { threadOf } from "../store.js";
import { T } from "../texts.js";
import { CopyAs, Heading, html } from "../ui.js";
import { Threads } from "./chat/list.js";
import { Thread } from "./chat/thread.js";
import { MAIN } from "./chat/use_thread.js";

export const title = T.chat.title;

export default function Chat() {
  const name = place.value.params["thread"] ?? MAIN;
  const id = threadOf(name)?.id;
  return html`
    <${Heading}>${title}<//>
    <div class="chat">
      <${Threads} name=${name} />
      <section class="thread" aria-label=${T.chat.thread}><${Thread} key=${name} name=${name} /></section>
    </div>
    ${id && html`<${CopyAs} cli=${`gantry chat --thread ${id}`} path=${`/api/chat/threads/${encodeURIComponent(id)}`} />`}
  `;
}
