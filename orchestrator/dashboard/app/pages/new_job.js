// The form for a new job, empty or from another job. What is written stays until the job exists.
//
// Owns how a form becomes a request, and a job a form: what has no field here is kept and sent as well.

import { useState } from "preact/hooks";
import { get, newIntent, post } from "../api.js";
import { Check, Field, Form, asChoices, problemsAt } from "../form.js";
import { go, place } from "../router.js";
import { drafts, who } from "../session.js";
import { T } from "../texts.js";
import { Heading, Text, html, useDoing, useLoad } from "../ui.js";

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

/** The fields of the form, by their names in the API. */
const FIELDS = ["prompt", "files", "title", "model", "image", "effort", "plan", "limits.timeout_seconds", "limits.max_tokens", "limits.max_cost_usd", "tools", "egress", "labels"];

/** What another job had and the form does not show. @param {{ rest: Draft["rest"] }} props */
function Rest({ rest }) {
  const names = [rest.settings, rest.limits, rest.labels].flatMap((part) => Object.entries(part ?? {}))
    .map(([name, value]) => (typeof value === "number" ? `${name} ${value}` : name));
  return names.length > 0 && html`<p class="note"><${Text}>${T.newJob.rest(names.join(", "))}<//></p>`;
}

/** @param {number} limit */
const highest = (limit) => (limit > 0 ? T.newJob.highest(limit) : T.newJob.noLimit);

/** @param {{ form: ReturnType<typeof useDraft>, options: Options, error: Error | null }} props */
function More({ form: { draft, change }, options, error }) {
  /** @typedef {"title" | "model" | "image" | "effort" | "plan" | "timeout" | "tokens" | "cost" | "tools" | "hosts" | "labels"} Name */
  const field = (/** @type {Name} */ name, /** @type {Record<string, unknown>} */ more = {}, at = /** @type {string} */ (name)) => html`
    <${Field} id=${name} name=${name === "title" ? T.newJob.jobTitle : T.newJob[name]} value=${draft[name]} problems=${problemsAt(error, at)}
      change=${(/** @type {string} */ value) => change({ [name]: value })} ...${more} />`;
  const choice = (/** @type {Name} */ name, /** @type {string} */ unset, /** @type {[string, string][]} */ choices) => field(name, { choices: [["", unset], ...choices] });
  const check = (/** @type {"review" | "hold" | "noTools"} */ name) => html`
    <${Check} name=${T.newJob[name]} isOn=${draft[name]} change=${(/** @type {boolean} */ isOn) => change({ [name]: isOn })} />`;
  return html`
    <div class="fields">
      ${field("title")}
      ${choice("model", T.newJob.defaultModel(options.models[0] ?? ""), asChoices(options.models))}
      ${choice("effort", T.newJob.unset, Object.entries(T.newJob.efforts))}
      ${choice("image", T.newJob.defaultModel(options.images[0] ?? ""), asChoices(options.images))}
      ${choice("plan", `${T.newJob.unset} (${T.newJob.plans[options.plan ? "true" : "false"]})`, Object.entries(T.newJob.plans))}
      ${field("timeout", { type: "number", min: 1, max: options.max_limits.timeout_seconds, placeholder: String(options.limits.timeout_seconds) }, "limits.timeout_seconds")}
      ${field("tokens", { type: "number", min: 1, placeholder: highest(options.max_limits.max_tokens) }, "limits.max_tokens")}
      ${field("cost", { type: "number", min: 0, step: "any", placeholder: highest(options.max_limits.max_cost_usd) }, "limits.max_cost_usd")}
      ${field("tools", { spellcheck: false, disabled: draft.noTools, placeholder: options.tools.slice(0, 4).join(" ") })}
      ${check("noTools")}
      ${field("hosts", { spellcheck: false }, "egress")}
      ${field("labels", { rows: 2, spellcheck: false })}
      ${check("review")} ${check("hold")}
      <${Rest} rest=${draft.rest} />
    </div>
  `;
}

/** @param {{ name: string, isFrom: boolean, start: { draft: Draft, intent: string }, options: Options }} props */
function JobForm({ name, isFrom, start, options }) {
  const form = useDraft(name, start);
  const { draft, files, intent } = form;
  const doing = useDoing();
  const submit = () => doing.run(async () => {
    const large = tooLarge(files);
    if (large) throw new Error(large);
    form.keep();
    const { id } = await post("/api/jobs", { body: bodyOf(draft, await Promise.all(files.map(encode))), intent });
    drafts.remove(name);
    go(`/jobs/${id}`);
  });
  return html`
    <${Form} look="job" doing=${doing} onSubmit=${submit} names=${FIELDS} word=${T.newJob.submit} busy=${T.newJob.busy} isReady=${draft.prompt.trim() !== ""}>
      <${Field} id="prompt" name=${T.newJob.prompt} rows=${6} required autofocus value=${draft.prompt} change=${(/** @type {string} */ prompt) => form.change({ prompt })} problems=${problemsAt(doing.error, "prompt")} />
      <${Field} id="files" name=${T.newJob.files} type="file" multiple onChange=${(/** @type {any} */ event) => form.setFiles([...event.target.files])} onInput=${null}
        note=${isFrom && T.newJob.noFiles} problems=${problemsAt(doing.error, "files")} />
      <details open=${place.value.query.has("more")}><summary>${T.newJob.more}</summary><${More} form=${form} options=${options} error=${doing.error} /></details>
    <//>
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
    ${value?.name === name && html`<${JobForm} key=${name} name=${name} isFrom=${from !== null} start=${value.start} options=${value.options} />`}
  `;
}
