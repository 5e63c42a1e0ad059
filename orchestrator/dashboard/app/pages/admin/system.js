// The state of the installation: readiness, slots, disk, versions, models, and what a user stores.

import { useEffect } from "preact/hooks";
import { get } from "../../api.js";
import { bytes } from "../../format.js";
import { Fact } from "../../parts.js";
import { place, setQuery } from "../../router.js";
import { generation, who } from "../../session.js";
import { hasServerFailed, readServer, server, watchServer } from "../../store.js";
import { T } from "../../texts.js";
import { Copy, CopyAs, Failed, Icon, Loading, Text, Time, html, useLoad } from "../../ui.js";

/** @typedef {import("../../api.js").schemas["Readiness"]} Readiness */

/** @param {{ isGood: boolean, children?: any }} props */
const Word = ({ isGood, children }) => html`<span class="state ${isGood ? "completed" : "failed"}"><${Icon} name=${isGood ? "completed" : "failed"} />${children}</span>`;

/** What the server says of itself. The engine is known only while it is ready. */
function Facts() {
  useEffect(() => watchServer(), [generation.value]);
  const [known, user] = [server.value, who.value];
  // A server that is not ready answers with the same body.
  const { value } = useLoad((signal) => get("/readyz", { signal }).catch(({ body }) => /** @type {Readiness | null} */ (body?.engine ? body : null)), [known?.ready, generation.value]);
  const hasSpace = !known?.sandbox.ready || known.ready;
  const why = known && [known.sandbox.reason, known.sandbox.message].filter(Boolean).join(": ");
  return html`
    ${!known && (hasServerFailed.value ? html`<${Failed} error=${new Error(T.now.noServer)} again=${readServer} />` : html`<${Loading} />`)}
    <dl class="facts">
      ${known && html`
        <${Fact} name=${T.system.sandbox}><${Word} isGood=${known.sandbox.ready}>${known.sandbox.ready ? T.now.model.ready : T.now.model.failed}<//> ${!known.sandbox.ready && html`<${Text}>${why}<//>`}<//>
        <${Fact} name=${T.system.model}><${Word} isGood=${known.model.ready}><${Text}>${known.model.name}<//><//> ${!known.model.ready && html`<${Text}>${known.model.message ?? ""}<//>`}<//>
        <${Fact} name=${T.system.slots}>${T.now.slots(known.slots.busy, known.slots.total)}<//>
        <${Fact} name=${T.system.queued}><a href="/jobs?state=pending">${known.queued}</a><//>
        ${(known.disk || !hasSpace) && html`<${Fact} name=${T.system.disk}>${known.disk && T.now.ofLimit(bytes(known.disk.free_bytes), bytes(known.disk.total_bytes))} ${!hasSpace && html`<${Word} isGood=${false}>${T.now.noSpace}<//>`} <${Text}>${value?.disk.detail ?? ""}<//><//>`}
        <${Fact} name=${T.system.since}><${Time} at=${known.started_at} /><//>`}
      ${user && html`
        <${Fact} name=${T.system.version}>${user.version}<//>
        <${Fact} name=${T.system.instance}><code>${user.instance}</code> <${Copy} text=${user.instance} name=${T.system.instance} /><//>`}
      ${value?.engine.name && html`
        <${Fact} name=${T.system.engine}><${Text}>${value.engine.name} ${value.engine.version}<//><//>
        <${Fact} name=${T.system.runtime}><${Text}>${value.engine.runtime}<//><//>
        <${Fact} name=${T.system.posture}><code><${Text}>${value.sandbox.posture}<//></code><//>`}
    </dl>
    ${value?.models && html`
      <h2>${T.system.models}</h2>
      <ul class="rows">${value.models.map((model, index) => html`<li key=${index} class="item line"><${Text}>${model.name}<//> <strong><${Text}>${model.model}<//></strong>
        <${Word} isGood=${model.breaker === "closed"}>${T.system.breakers[/** @type {"open"} */ (model.breaker)] ?? model.breaker}<//></li>`)}</ul>`}
  `;
}

/** What one user stores, by kind; the user is in the URL. */
function Storage() {
  const user = place.value.query.get("user") ?? who.value?.user ?? "";
  const { value, status } = useLoad((signal) => get("/api/storage", { query: { user }, signal }), [user, generation.value]);
  const onSubmit = (/** @type {any} */ event) => {
    event.preventDefault();
    setQuery({ user: event.target.elements.user.value.trim() || null });
  };
  return html`
    <h2>${T.system.storage}</h2>
    <form class="filters" onSubmit=${onSubmit}><label>${T.system.storageUser} <input name="user" key=${user} defaultValue=${user} spellcheck=${false} /></label>
      <button type="submit">${T.system.storageShow}</button></form>
    ${status}
    ${value && html`
      <p>${T.now.ofLimit(bytes(value.bytes), value.max_bytes ? bytes(value.max_bytes) : null)} ${value.max_bytes
        ? html`<meter min="0" max=${value.max_bytes} value=${Math.min(value.bytes, value.max_bytes)} aria-label=${T.system.storageOf(user)}></meter>` : T.system.noLimit}</p>
      <dl class="facts">${value.kinds.map(({ kind, bytes: size }) => html`<${Fact} key=${kind} name=${T.system.kinds[kind] ?? kind}>${bytes(size)}<//>`)}</dl>`}
  `;
}

export const System = () => html`
  <${Facts} />
  <${Storage} />
  <h2>${T.system.more}</h2>
  <p><a href="/metrics" target="_blank" rel="noopener">${T.system.metrics}</a></p>
  <p class="line"><span class="note">${T.system.doctor}</span> <code>${T.system.command}</code> <${Copy} text=${T.system.command} name=${T.system.command} /></p>
  <${CopyAs} cli="gantry doctor" path="/api/status" />
`;
