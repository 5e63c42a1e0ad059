// The login: by the one-time code of a link, or by a token that is pasted. Also what a visitor without a session sees on every page.

import { useEffect, useState } from "preact/hooks";
import { ApiError, get, key } from "../api.js";
import { isEndedElsewhere, isLeftOpen, logIn, who } from "../session.js";
import { T } from "../texts.js";
import { Copy, Heading, Problem, Text, html, useDoing } from "../ui.js";

export const title = T.login.title;

/** Takes the code out of the URL, so that it is in no history and no bookmark. */
function takeCode() {
  const url = new URL(location.href);
  const code = new URLSearchParams(url.hash.slice(1)).get("code");
  url.hash = "";
  if (code) history.replaceState(null, "", url);
  return code ?? "";
}

/** @param {unknown} error @param {boolean} isLink */
function refusal(error, isLink) {
  if (!(error instanceof ApiError)) return String(error);
  if (error.status === 401) return isLink ? T.login.refusedLink : T.login.refusedToken;
  if (error.code === "cross_origin") return T.login.otherOrigin;
  return error.status === 429 ? T.login.limited(error.retryAfter ?? 1) : error.message;
}

/** @param {{ onDone?: () => void }} props */
export function LoginForm({ onDone = () => {} }) {
  const { isBusy, error, run } = useDoing();
  const [asked, setAsked] = useState("");

  const use = (/** @type {import("../session.js").Credential} */ credential) => run(() => logIn(credential).then(onDone, (failure) => {
    throw new Error(refusal(failure, "code" in credential));
  }));

  useEffect(() => {
    const useCode = () => {
      const code = takeCode();
      // Any page can open a link to here: it must not put another user in the place of the one who is logged in.
      if (code && key.get()) setAsked(code);
      else if (code) use({ code });
    };
    useCode();
    // A second link that is opened in this tab loads nothing.
    addEventListener("hashchange", useCode);
    return () => removeEventListener("hashchange", useCode);
  }, []);

  function onSubmit(/** @type {SubmitEvent} */ event) {
    event.preventDefault();
    const field = /** @type {HTMLFormElement} */ (event.target).elements.namedItem("token");
    const token = field instanceof HTMLInputElement ? field.value.trim() : "";
    if (token) use({ token });
  }

  return html`
    <${Problem} error=${error} />
    ${asked && html`<p class="banner line" role="status">${T.login.another} <button type="button" disabled=${isBusy} onClick=${() => (setAsked(""), use({ code: asked }))}>${T.login.useLink}</button></p>`}
    <p>${T.login.link}</p>
    <ul class="commands">
      ${T.login.commands.map((command) => html`<li class="line"><code>${command}</code> <${Copy} text=${command} name=${command} /></li>`)}
    </ul>
    <p class="note">${T.login.once}</p>
    <form onSubmit=${onSubmit}>
      <label for="token">${T.login.token}</label>
      <input id="token" name="token" type="password" autocomplete="off" spellcheck=${false} required autofocus aria-describedby="token-note" />
      <button type="submit" disabled=${isBusy}>${isBusy ? T.login.busy : T.login.button}</button>
      <p id="token-note" class="note">${T.login.tokenNote}</p>
    </form>
  `;
}

export default function Login() {
  const [version, setVersion] = useState("");
  useEffect(() => void get("/healthz").then((health) => setVersion(health.version), () => {}), []);
  const isAtLogin = location.pathname === "/login";
  // Nothing of another session is left after this.
  const onDone = () => isAtLogin && location.replace("/");
  return html`
    <${Heading}>${T.login.title}<//>
    <p>${T.login.what}</p>
    <p class="note">${T.login.at(location.host, version)}</p>
    ${isLeftOpen.value && html`<p class="banner" role="status">${T.login.notEnded}</p>`}
    ${isEndedElsewhere.value && html`<p class="banner" role="status">${T.login.endedElsewhere}</p>`}
    ${who.value && html`<p><${Text}>${T.login.already(who.value.user)}<//> <a href="/">${T.login.goOn}</a></p>`}
    <${LoginForm} onDone=${onDone} />
  `;
}
