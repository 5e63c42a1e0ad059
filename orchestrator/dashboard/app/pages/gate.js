// One gate: a call of a tool that waits for a person, or what became of it.

import { useEffect, useLayoutEffect } from "preact/hooks";
import { isProblem } from "../api.js";
import { positioned } from "../live.js";
import { place } from "../router.js";
import { generation } from "../session.js";
import { gates, readGate, resyncs } from "../store.js";
import { T } from "../texts.js";
import { CopyAs, Failed, Heading, Loading, html, useLoad, useSubject } from "../ui.js";
import { Card, bindGateKeys } from "./gate/card.js";

export const title = T.gate.title;

/** @param {string} id @param {AbortSignal} signal */
async function read(id, signal) {
  await positioned();
  return readGate(id, signal);
}

export default function GatePage() {
  const { id = "" } = place.value.params;
  const { value, error, isLoading, again } = useLoad((signal) => read(id, signal), [id, generation.value, resyncs.value]);
  const isGone = isProblem(error, 404);
  const known = gates.get(id);
  const gate = isGone ? null : known ?? (value && { ...value, isCut: false });
  useSubject(gate?.tool);
  useLayoutEffect(() => bindGateKeys(true), []);
  useEffect(() => {
    gates.show([id]);
    return () => gates.show([]);
  }, [id]);
  return html`
    <${Heading}>${title}<//>
    ${isGone && html`<p class="failure" role="alert">${T.gate.gone}</p>`}
    ${error && !isGone && html`<${Failed} error=${error} again=${again} />`}
    ${!gate && isLoading && html`<${Loading} />`}
    ${gate && html`<${Card} gate=${gate} /><${CopyAs} cli=${`gantry gate show ${id}`} path=${`/api/gates/${id}`} />`}
  `;
}
