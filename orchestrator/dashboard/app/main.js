// The start: puts the parts together. Owns when events are followed: as long as there is a session.

import { effect, untracked } from "@preact/signals";
import { h, render } from "preact";
import { startKeys } from "./keys.js";
import { connection, follow } from "./live.js";
import { startRouter } from "./router.js";
import { check, generation, start, status } from "./session.js";
import { Shell } from "./shell.js";
import { KINDS, clear, push, readCounts, resync, wake, wantGates } from "./store.js";
import { startClock } from "./ui.js";

/** @type {ReturnType<typeof follow> | null} */
let live = null;

effect(() => {
  const hasSession = status.value === "open" || status.value === "ended";
  untracked(() => {
    if (hasSession && !live) live = follow({ kinds: KINDS, onEvent: push, onResync: resync });
    if (hasSession || !live) return;
    live.stop();
    live = null;
    clear();
  });
});

// After a login in any tab the stream, which waits for one, goes on.
effect(() => {
  if (generation.value === 0) return;
  untracked(() => (live?.retry(), readCounts(), wantGates()));
});

// After a lost connection the server may be another version, and this machine's clock another one after a sleep.
let before = connection.value.state;
connection.subscribe(({ state }) => {
  if (before === "reconnecting" && state === "live") check().catch(() => {});
  if (before !== state) untracked(wake);
  before = state;
});

document.addEventListener("visibilitychange", wake);
startRouter();
startKeys();
startClock();
start();
// What the page says without scripts.
document.body.replaceChildren();
render(h(Shell, {}), document.body);
