// What can be done with a routine: run, enable, disable, delete. Each says what became of it where its button is.

import { useState } from "preact/hooks";
import { post, remove } from "../../api.js";
import { position } from "../../live.js";
import { ConfirmButton } from "../../parts.js";
import { putRoutine, putRun, routines } from "../../store.js";
import { T } from "../../texts.js";
import { Problem, Text, announce, html, useDoing, useIntent } from "../../ui.js";

/** @typedef {Pick<import("../../api.js").schemas["Routine"], "id" | "name" | "enabled">} Subject */

/** Fires a routine now; a double click fires it once. @param {{ routine: Subject, doing: ReturnType<typeof useDoing>, onRun: (id: string) => void }} props */
function RunNow({ routine, doing, onRun }) {
  const { send } = useIntent();
  const fire = async () => {
    const seen = position();
    const run = await send((intent) => post("/api/routines/{id}/trigger", { path: { id: routine.id }, body: {}, intent }));
    putRun(run, seen);
    announce(T.routine.started);
    onRun(run.id);
  };
  return html`<button type="button" disabled=${doing.isBusy || !routine.enabled} onClick=${() => doing.run(fire)}>
    ${T.routine.run}<span class="hidden"> <${Text}>${routine.name}<//></span></button>`;
}

/** @param {{ routine: Subject, doing: ReturnType<typeof useDoing>, again?: (() => void) | undefined }} props */
function Switch({ routine, doing, again }) {
  const path = routine.enabled ? "/api/routines/{id}/disable" : "/api/routines/{id}/enable";
  const change = async () => {
    const seen = position();
    putRoutine(await post(path, { path: { id: routine.id } }), seen);
    again?.();
  };
  return html`<button type="button" disabled=${doing.isBusy} onClick=${() => doing.run(change)}>
    ${routine.enabled ? T.routine.disable : T.routine.enable}<span class="hidden"> <${Text}>${routine.name}<//></span></button>`;
}

/** @param {{ routine: Subject, doing: ReturnType<typeof useDoing>, onRemoved: () => void }} props */
function Remove({ routine: { id }, doing, onRemoved }) {
  const work = async () => {
    await remove("/api/routines/{id}", { path: { id } });
    routines.drop(id);
    onRemoved();
  };
  return html`
    <${ConfirmButton} name=${T.routine.remove} title=${T.routine.removeQuestion} note=${T.routine.removeNote} isDisabled=${doing.isBusy} onYes=${() => doing.run(work)} />
  `;
}

/**
 * The buttons of a routine. Those of its page have more.
 * @param {{ routine: Subject, again?: () => void, onRemoved?: () => void, children?: any }} props
 */
export function Actions({ routine, again, onRemoved, children }) {
  const doing = useDoing();
  const [started, setStarted] = useState(/** @type {string | null} */ (null));
  return html`
    <div class="actions">
      <span class="line">
        <${RunNow} routine=${routine} doing=${doing} onRun=${setStarted} />
        ${children}
        <${Switch} routine=${routine} doing=${doing} again=${again} />
        ${onRemoved && html`<${Remove} routine=${routine} doing=${doing} onRemoved=${onRemoved} />`}
      </span>
      ${started && html`<span class="note">${T.routine.started} <a href=${`/runs/${started}`}>${T.routine.show}</a></span>`}
      <${Problem} error=${doing.error} />
    </div>
  `;
}
