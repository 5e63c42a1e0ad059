// The form for a new job, empty or from another job. What is written stays until the job exists.

import { useEffect, useState } from "preact/hooks";
import { ApiError, get, post } from "../api.js";
import { go, place } from "../router.js";
import { T } from "../texts.js";
import { Failed, Heading, Loading, Text, html, useLoad } from "../ui.js";

export const title = T.newJob.title;

const DRAFT = "gantry.draft.job";
const MAX_FILE_BYTES = 5 * 1024 * 1024;

/** @typedef {{ prompt: string, title: string, model: string, timeout: string, tokens: string, cost: string, tools: string, hosts: string, labels: string, review: boolean, hold: boolean }} Draft */
/** @type {Draft} */
const EMPTY = { prompt: "", title: "", model: "", timeout: "", tokens: "", cost: "", tools: "", hosts: "", labels: "", review: false, hold: false };

/** @param {any} job @returns {Draft} */
function draftOf(job) {
  return {
    ...EMPTY,
    prompt: job.prompt, title: job.title, model: job.model,
    timeout: String(job.limits.timeout_seconds ?? ""), tokens: String(job.limits.max_tokens ?? ""), cost: String(job.limits.max_cost_usd ?? ""),
    tools: (job.tools ?? []).join(" "), review: job.review,
    hosts: (job.egress?.allow ?? []).join(" "), labels: Object.entries(job.labels).map(([name, value]) => `${name}=${value}`).join(" "),
  };
}

const words = (/** @type {string} */ text) => text.split(/[\s,]+/).filter(Boolean);

/** The body of the request. @param {Draft} draft @param {{ path: string, content_base64: string }[]} files */
export function bodyOf(draft, files) {
  const limits = Object.fromEntries([["timeout_seconds", draft.timeout], ["max_tokens", draft.tokens], ["max_cost_usd", draft.cost]].flatMap(([name, text]) => (text ? [[name, Number(text)]] : [])));
  const labels = Object.fromEntries(words(draft.labels).map((pair) => [pair.split("=")[0], pair.split("=").slice(1).join("=")]));
  return {
    prompt: draft.prompt,
    ...(draft.title && { title: draft.title }),
    ...(draft.model && { model: draft.model }),
    ...(Object.keys(limits).length > 0 && { limits }),
    ...(words(draft.tools).length > 0 && { tools: words(draft.tools) }),
    ...(words(draft.hosts).length > 0 && { egress: { allow: words(draft.hosts) } }),
    ...(Object.keys(labels).length > 0 && { labels }),
    ...(files.length > 0 && { files }),
    review: draft.review,
    hold: draft.hold,
  };
}

/** @param {number} limit */
const highest = (limit) => (limit > 0 ? T.newJob.highest(limit) : T.newJob.noLimit);

/** @param {File} file */
async function encode(file) {
  const content = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let at = 0; at < content.length; at += 32_768) text += String.fromCharCode(...content.subarray(at, at + 32_768));
  return { path: file.name, content_base64: btoa(text) };
}

/** @param {{ start: Draft, options: import("../api.js").schemas["JobOptions"] }} props */
function Form({ start, options }) {
  const [draft, setDraft] = useState(start);
  const [files, setFiles] = useState(/** @type {File[]} */ ([]));
  const [error, setError] = useState(/** @type {ApiError | Error | null} */ (null));
  const [isBusy, setIsBusy] = useState(false);
  const [intent, setIntent] = useState(() => crypto.randomUUID());
  useEffect(() => sessionStorage.setItem(DRAFT, JSON.stringify(draft)), [draft]);
  const fields = error instanceof ApiError ? error.fields : [];
  const change = (/** @type {keyof Draft} */ name) => (/** @type {any} */ event) => {
    const { type, checked, value } = event.target;
    setDraft({ ...draft, [name]: type === "checkbox" ? checked : value });
    // Another body is another job.
    setIntent(crypto.randomUUID());
  };
  const wrong = (/** @type {string} */ field) => fields.filter((one) => one.field === field || one.field.startsWith(`${field}.`) || one.field.startsWith(`${field}[`));
  const Problem = (/** @type {{ field: string }} */ { field }) => wrong(field).map(({ field: name, message }) => html`<p key=${name} class="failure" id=${`wrong-${field}`}><${Text}>${message}<//></p>`);
  async function submit(/** @type {Event} */ event) {
    event.preventDefault();
    const large = files.find(({ size }) => size > MAX_FILE_BYTES);
    if (large) return setError(new Error(T.newJob.large(large.name)));
    setIsBusy(true);
    setError(null);
    try {
      const job = await post("/api/jobs", { body: bodyOf(draft, await Promise.all(files.map(encode))), intent });
      sessionStorage.removeItem(DRAFT);
      go(`/jobs/${/** @type {any} */ (job).id}`);
    } catch (failure) {
      setError(/** @type {Error} */ (failure));
      setIsBusy(false);
    }
  }
  /** @param {keyof Draft} name @param {string} field @param {Record<string, unknown>} [more] */
  const input = (name, field, more = {}) => html`
    <label for=${name}>${name === "title" ? T.newJob.jobTitle : T.newJob[name]}</label>
    <input id=${name} value=${draft[name]} onInput=${change(name)} aria-invalid=${wrong(field).length > 0} ...${more} />
    <${Problem} field=${field} />`;
  return html`
    <form class="job" onSubmit=${submit}>
      <label for="prompt">${T.newJob.prompt}</label>
      <textarea id="prompt" rows="6" required autofocus value=${draft.prompt} onInput=${change("prompt")}
        onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Enter" && (event.metaKey || event.ctrlKey) && submit(event)}></textarea>
      <${Problem} field="prompt" />
      <label for="files">${T.newJob.files}</label>
      <input id="files" type="file" multiple onChange=${(/** @type {any} */ event) => (setFiles([...event.target.files]), setIntent(crypto.randomUUID()))} />
      <${Problem} field="files" />
      <details><summary>${T.newJob.more}</summary><div class="fields">
        ${input("title", "title")}
        <label for="model">${T.newJob.model}</label>
        <select id="model" value=${draft.model} onChange=${change("model")}>
          <option value="">${T.newJob.defaultModel(options.models[0] ?? "")}</option>
          ${options.models.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
        </select>
        <${Problem} field="model" />
        ${input("timeout", "limits.timeout_seconds", { type: "number", min: 1, max: options.max_limits.timeout_seconds, placeholder: String(options.limits.timeout_seconds) })}
        ${input("tokens", "limits.max_tokens", { type: "number", min: 1, placeholder: highest(options.max_limits.max_tokens) })}
        ${input("cost", "limits.max_cost_usd", { type: "number", min: 0, step: "any", placeholder: highest(options.max_limits.max_cost_usd) })}
        ${input("tools", "tools", { spellcheck: false, placeholder: options.tools.slice(0, 4).join(" ") })} ${input("hosts", "egress", { spellcheck: false })} ${input("labels", "labels", { spellcheck: false })}
        <label class="check"><input type="checkbox" checked=${draft.review} onChange=${change("review")} />${T.newJob.review}</label>
        <label class="check"><input type="checkbox" checked=${draft.hold} onChange=${change("hold")} />${T.newJob.hold}</label>
      </div></details>
      ${error && html`<p class="failure" role="alert"><${Text}>${error.message}<//></p>`}
      <button type="submit" disabled=${isBusy || !draft.prompt.trim()}>${isBusy ? T.newJob.busy : T.newJob.submit}</button>
    </form>
  `;
}

/** @returns {Draft} */
function kept() {
  try {
    return { ...EMPTY, ...JSON.parse(sessionStorage.getItem(DRAFT) ?? "{}") };
  } catch {
    return EMPTY;
  }
}

export default function NewJob() {
  const from = place.value.query.get("from");
  const { value, error, again } = useLoad(async (signal) => {
    const [options, job] = await Promise.all([get("/api/options", { signal }), from ? get("/api/jobs/{id}", { path: { id: from }, signal }) : null]);
    return { options, start: job ? draftOf(job) : kept() };
  }, [from]);
  return html`
    <${Heading}>${title}<//>
    ${error && html`<${Failed} error=${error} again=${again} />`}
    ${!value && !error && html`<${Loading} />`}
    ${value && html`<${Form} key=${from} start=${value.start} options=${value.options} />`}
  `;
}
