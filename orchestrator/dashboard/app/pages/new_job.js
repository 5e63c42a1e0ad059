// The form for a new job, empty or from another job. What is written stays until the job exists.
//
// Owns how a form becomes a request, and a job a form: what has no field here is kept and sent as well.

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get, newIntent, post } from "../api.js";
import { go, place } from "../router.js";
import { drafts, who } from "../session.js";
import { T } from "../texts.js";
import { Heading, Text, html, useLoad } from "../ui.js";

export const title = T.newJob.title;

const MAX_FILE_BYTES = 5 * 1024 * 1024;
/** A request has at most 24 MiB, and base64 makes 4 bytes of 3. */
const MAX_FILES_BYTES = 17 * 1024 * 1024;

/** @typedef {import("../api.js").schemas["JobOptions"]} Options */
/** @typedef {import("../api.js").schemas["Job"]} Job */
/**
 * `rest` is what another job had and the form has no field for.
 * @typedef {{
 *   prompt: string, title: string, model: string, image: string, effort: string, plan: string, timeout: string, tokens: string,
 *   cost: string, tools: string, noTools: boolean, hosts: string, labels: string, review: boolean, hold: boolean,
 *   rest: { limits?: Record<string, number>, labels?: Record<string, string>, settings?: Record<string, unknown> }
 * }} Draft
 */
/** @type {Draft} */
const EMPTY = {
  prompt: "", title: "", model: "", image: "", effort: "", plan: "", timeout: "", tokens: "", cost: "",
  tools: "", noTools: false, hosts: "", labels: "", review: false, hold: false, rest: {},
};

/** The form of a job like another one. Zero as a limit means none. @param {Job} job @param {Options} options @returns {Draft} */
export function draftOf(job, options) {
  const { timeout_seconds: timeout, max_tokens: tokens, max_cost_usd: cost, ...limits } = job.limits;
  const labels = Object.entries(job.labels ?? {});
  // A line of the field holds what has no line break, and no "=" in its name.
  const isLine = ([name, value] = ["", ""]) => name === name.trim() && !/[=\n\r]/.test(name) && !/[\n\r]/.test(value);
  const settings = Object.entries({ priority: job.priority, approve: job.approve, metadata: job.metadata });
  const isSet = (/** @type {unknown} */ value) => Boolean(value) && (typeof value !== "object" || Object.keys(value ?? {}).length > 0);
  return {
    ...EMPTY,
    prompt: job.prompt,
    // The title of a job without one is the beginning of its prompt.
    title: job.prompt.startsWith(job.title) ? "" : job.title,
    model: job.model, image: job.image ?? "", effort: job.effort ?? "", plan: String(job.plan ?? ""),
    timeout: String(timeout || ""), tokens: String(tokens || ""), cost: String(cost || ""),
    tools: (job.tools ?? []).join(" "), noTools: job.tools?.length === 0, review: job.review ?? false,
    hosts: (job.egress?.allow ?? []).join(" "),
    labels: labels.filter(isLine).map(([name, value]) => `${name}=${value}`).join("\n"),
    rest: {
      limits: Object.fromEntries(Object.entries(limits).filter(([name, value]) => value !== options.limits[/** @type {keyof typeof limits} */ (name)])),
      labels: Object.fromEntries(labels.filter((label) => !isLine(label))),
      settings: Object.fromEntries(settings.filter(([, value]) => isSet(value))),
    },
  };
}

const words = (/** @type {string} */ text) => text.split(/[\s,]+/).filter(Boolean);
const hasAny = (/** @type {object} */ object) => Object.keys(object).length > 0;

/** @param {string} text */
function labelsOf(text) {
  const lines = text.split(/\r?\n/).filter((line) => line.trim() !== "");
  return Object.fromEntries(lines.map((line) => {
    const at = line.indexOf("=");
    return at < 0 ? [line.trim(), ""] : [line.slice(0, at).trim(), line.slice(at + 1)];
  }));
}

/** The body of the request. @param {Draft} draft @param {{ path: string, content_base64: string }[]} files */
export function bodyOf({ rest, ...draft }, files) {
  const numbers = { timeout_seconds: draft.timeout, max_tokens: draft.tokens, max_cost_usd: draft.cost };
  const limits = { ...rest.limits, ...Object.fromEntries(Object.entries(numbers).flatMap(([name, text]) => (text ? [[name, Number(text)]] : []))) };
  const labels = { ...rest.labels, ...labelsOf(draft.labels) };
  const [tools, hosts] = [words(draft.tools), words(draft.hosts)];
  return {
    ...rest.settings,
    prompt: draft.prompt,
    ...(draft.title && { title: draft.title }),
    ...(draft.model && { model: draft.model }),
    ...(draft.image && { image: draft.image }),
    ...(draft.effort && { effort: draft.effort }),
    ...(draft.plan && { plan: draft.plan === "true" }),
    ...(hasAny(limits) && { limits }),
    ...(draft.noTools ? { tools: [] } : tools.length > 0 && { tools }),
    ...(hosts.length > 0 && { egress: { allow: hosts } }),
    ...(hasAny(labels) && { labels }),
    ...(files.length > 0 && { files }),
    review: draft.review,
    hold: draft.hold,
  };
}

/** Why files cannot be sent with the job. @param {File[]} files */
function tooLarge(files) {
  const large = files.find(({ size }) => size > MAX_FILE_BYTES);
  if (large) return T.newJob.large(large.name);
  return files.reduce((sum, { size }) => sum + size, 0) > MAX_FILES_BYTES ? T.newJob.largeTogether : null;
}

/** @param {File} file */
async function encode(file) {
  const content = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let at = 0; at < content.length; at += 32_768) text += String.fromCharCode(...content.subarray(at, at + 32_768));
  return { path: file.name, content_base64: btoa(text) };
}

/**
 * What is written, under a name in the storage of the tab. Another body is another job, so each change has another intent. Files cannot be
 * stored, so with files the intent is not either.
 * @param {string} name @param {{ draft: Draft, intent: string }} start
 */
function useDraft(name, start) {
  const [state, setState] = useState({ ...start, files: /** @type {File[]} */ ([]) });
  const keep = ({ draft, intent, files } = state) => drafts.set(name, files.length > 0 ? { draft } : { draft, intent });
  const set = (/** @type {typeof state} */ next) => (keep(next), setState(next));
  return {
    ...state,
    keep,
    change: (/** @type {Partial<Draft>} */ values) => set({ ...state, draft: { ...state.draft, ...values }, intent: newIntent() }),
    setFiles: (/** @type {File[]} */ files) => set({ ...state, files, intent: newIntent() }),
  };
}

/** What is sent to the server, and what it says. @param {string} name @param {ReturnType<typeof useDraft>} form */
function useSubmit(name, { draft, files, intent, keep }) {
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const [isBusy, setIsBusy] = useState(false);
  async function submit(/** @type {Event} */ event) {
    event.preventDefault();
    if (isBusy) return;
    const large = tooLarge(files);
    if (large) return setError(new Error(large));
    setIsBusy(true);
    setError(null);
    keep();
    try {
      const { id } = await post("/api/jobs", { body: bodyOf(draft, await Promise.all(files.map(encode))), intent });
      drafts.remove(name);
      go(`/jobs/${id}`);
    } catch (failure) {
      setError(/** @type {Error} */ (failure));
      setIsBusy(false);
    }
  }
  return { error, isBusy, submit };
}

/** The fields of the form, by their names in the API. */
const FIELDS = ["prompt", "files", "title", "model", "image", "effort", "plan", "limits.timeout_seconds", "limits.max_tokens", "limits.max_cost_usd", "tools", "egress", "labels"];

/** What the server says about fields. @param {Error | null} error */
function problemsOf(error) {
  const all = error instanceof ApiError ? error.fields : [];
  const isAt = (/** @type {string} */ name, /** @type {string} */ field) => name === field || name.startsWith(`${field}.`) || name.startsWith(`${field}[`);
  const at = (/** @type {string} */ field) => all.filter((one) => isAt(one.field, field));
  return {
    /** What has no field in the form. */
    others: all.filter((one) => !FIELDS.some((field) => isAt(one.field, field))),
    /** @param {string} field */
    attributes: (field) => (at(field).length > 0 ? { "aria-invalid": "true", "aria-describedby": `wrong-${field}` } : {}),
    /** @param {string} field */
    show: (field) => at(field).length > 0 && html`
      <div class="failure" id=${`wrong-${field}`}>${at(field).map(({ message }, index) => html`<p key=${index}><${Text}>${message}<//></p>`)}</div>`,
  };
}

/** What another job had and the form does not show. @param {{ rest: Draft["rest"] }} props */
function Rest({ rest }) {
  const names = [rest.settings, rest.limits, rest.labels].flatMap((part) => Object.entries(part ?? {}))
    .map(([name, value]) => (typeof value === "number" ? `${name} ${value}` : name));
  return names.length > 0 && html`<p class="note"><${Text}>${T.newJob.rest(names.join(", "))}<//></p>`;
}

/** @param {number} limit */
const highest = (limit) => (limit > 0 ? T.newJob.highest(limit) : T.newJob.noLimit);

/** The choice of one of some names; a name that is not offered stays. @param {string[]} names @param {string} chosen */
const offered = (names, chosen) => (chosen === "" || names.includes(chosen) ? names : [...names, chosen]);

/** @param {{ form: ReturnType<typeof useDraft>, options: Options, problems: ReturnType<typeof problemsOf> }} props */
function More({ form: { draft, change }, options, problems }) {
  /** @typedef {"title" | "model" | "image" | "effort" | "plan" | "timeout" | "tokens" | "cost" | "tools" | "hosts" | "labels" | "review" | "hold" | "noTools"} Name */
  const words = (/** @type {Name} */ name) => (name === "title" ? T.newJob.jobTitle : T.newJob[name]);
  const onInput = (/** @type {Name} */ name) => (/** @type {any} */ { target }) => change({ [name]: target.type === "checkbox" ? target.checked : target.value });
  const input = (/** @type {Name} */ name, /** @type {string} */ field, /** @type {Record<string, unknown>} */ more = {}) => html`
    <label for=${name}>${words(name)}</label>
    <input id=${name} value=${draft[name]} onInput=${onInput(name)} ...${problems.attributes(field)} ...${more} />
    ${problems.show(field)}`;
  const choice = (/** @type {Name} */ name, /** @type {string} */ unset, /** @type {[string, string][]} */ choices) => html`
    <label for=${name}>${words(name)}</label>
    <select id=${name} value=${draft[name]} onChange=${onInput(name)} ...${problems.attributes(name)}>
      <option value="">${unset}</option>
      ${choices.map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}
    </select>
    ${problems.show(name)}`;
  const check = (/** @type {"review" | "hold" | "noTools"} */ name) => html`
    <label class="check"><input type="checkbox" checked=${draft[name]} onChange=${onInput(name)} />${T.newJob[name]}</label>`;
  const pairs = (/** @type {string[]} */ names, /** @type {string} */ chosen) => offered(names, chosen).map((name) => /** @type {[string, string]} */ ([name, name]));
  return html`
    <div class="fields">
      ${input("title", "title")}
      ${choice("model", T.newJob.defaultModel(options.models[0] ?? ""), pairs(options.models, draft.model))}
      ${choice("effort", T.newJob.unset, Object.entries(T.newJob.efforts))}
      ${choice("image", T.newJob.defaultModel(options.images[0] ?? ""), pairs(options.images, draft.image))}
      ${choice("plan", `${T.newJob.unset} (${T.newJob.plans[options.plan ? "true" : "false"]})`, Object.entries(T.newJob.plans))}
      ${input("timeout", "limits.timeout_seconds", { type: "number", min: 1, max: options.max_limits.timeout_seconds, placeholder: String(options.limits.timeout_seconds) })}
      ${input("tokens", "limits.max_tokens", { type: "number", min: 1, placeholder: highest(options.max_limits.max_tokens) })}
      ${input("cost", "limits.max_cost_usd", { type: "number", min: 0, step: "any", placeholder: highest(options.max_limits.max_cost_usd) })}
      ${input("tools", "tools", { spellcheck: false, disabled: draft.noTools, placeholder: options.tools.slice(0, 4).join(" ") })}
      ${check("noTools")}
      ${input("hosts", "egress", { spellcheck: false })}
      <label for="labels">${T.newJob.labels}</label>
      <textarea id="labels" rows="2" spellcheck=${false} value=${draft.labels} onInput=${onInput("labels")} ...${problems.attributes("labels")}></textarea>
      ${problems.show("labels")}
      ${check("review")} ${check("hold")}
      <${Rest} rest=${draft.rest} />
    </div>
  `;
}

/** @param {{ name: string, isFrom: boolean, start: { draft: Draft, intent: string }, options: Options }} props */
function Form({ name, isFrom, start, options }) {
  const form = useDraft(name, start);
  const { error, isBusy, submit } = useSubmit(name, form);
  const problems = problemsOf(error);
  const more = useRef(/** @type {HTMLDetailsElement | null} */ (null));
  const element = useRef(/** @type {HTMLFormElement | null} */ (null));
  // What is wrong inside of the closed part would not be seen.
  const open = (/** @type {Element | null | undefined} */ field) => void (field && more.current?.contains(field) && (more.current.open = true));
  useEffect(() => {
    const first = /** @type {HTMLElement | null | undefined} */ (element.current?.querySelector("[aria-invalid=true]"));
    open(first);
    first?.focus();
  }, [error]);
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) element.current?.requestSubmit();
  };
  return html`
    <form class="job" ref=${element} onSubmit=${submit} onInvalidCapture=${(/** @type {any} */ event) => open(event.target)}>
      <label for="prompt">${T.newJob.prompt}</label>
      <textarea id="prompt" rows="6" required autofocus value=${form.draft.prompt} onKeyDown=${onKeyDown}
        onInput=${(/** @type {any} */ event) => form.change({ prompt: event.target.value })} ...${problems.attributes("prompt")}></textarea>
      ${problems.show("prompt")}
      <label for="files">${T.newJob.files}</label>
      <input id="files" type="file" multiple onChange=${(/** @type {any} */ event) => form.setFiles([...event.target.files])} ...${problems.attributes("files")} />
      ${problems.show("files")}
      ${isFrom && html`<p class="note">${T.newJob.noFiles}</p>`}
      <details ref=${more}><summary>${T.newJob.more}</summary><${More} form=${form} options=${options} problems=${problems} /></details>
      ${error && html`<div class="failure" role="alert"><p><${Text}>${error.message}<//></p>
        ${problems.others.map(({ field, message }, index) => html`<p key=${index}><${Text}>${field}: ${message}<//></p>`)}</div>`}
      <button type="submit" disabled=${isBusy || !form.draft.prompt.trim()}>${isBusy ? T.newJob.busy : T.newJob.submit}</button>
    </form>
  `;
}

/** What the form begins with: what was written, the other job, nothing. @param {string} name @param {Job | null} job @param {Options} options */
function startOf(name, job, options) {
  const kept = drafts.get(name);
  const draft = { ...(job ? draftOf(job, options) : EMPTY), ...kept?.draft };
  return { draft, intent: kept?.intent ?? newIntent() };
}

export default function NewJob() {
  const from = place.value.query.get("from");
  const name = from ? `job.${from}` : "job";
  const { value, status } = useLoad(async (signal) => {
    const [options, job] = await Promise.all([get("/api/options", { signal }), from ? get("/api/jobs/{id}", { path: { id: from }, signal }) : null]);
    return { name, options, start: startOf(name, job, options) };
  }, [from]);
  if (who.value?.role === "viewer") return html`<${Heading}>${title}<//><p>${T.newJob.viewer}</p>`;
  return html`
    <${Heading}>${title}<//>
    ${status}
    ${value?.name === name && html`<${Form} key=${name} name=${name} isFrom=${from !== null} start=${value.start} options=${value.options} />`}
  `;
}
