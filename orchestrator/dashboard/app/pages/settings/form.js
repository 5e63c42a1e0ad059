// The user's settings as texts of a form, and back. Pure.

/** @typedef {import("../../api.js").schemas["UserSettings"]} UserSettings */
/** @typedef {{ timezone: string, model: string, effort: string, temperature: string, quietFrom: string, quietTo: string, heartbeat: string }} Form */

/** The fields of the form, by their names in the API. */
export const FIELDS = /** @type {const} */ ({
  timezone: "timezone", model: "model", effort: "effort", temperature: "temperature", quietFrom: "quiet_hours", quietTo: "quiet_hours", heartbeat: "heartbeat_every_seconds",
});
export const NAMES = /** @type {(keyof Form)[]} */ (Object.keys(FIELDS));

/** @param {UserSettings} settings @returns {Form} */
export function formOf(settings) {
  return {
    timezone: settings.timezone ?? "",
    model: settings.model ?? "",
    effort: settings.effort ?? "",
    temperature: String(settings.temperature ?? ""),
    quietFrom: settings.quiet_hours?.from ?? "",
    quietTo: settings.quiet_hours?.to ?? "",
    heartbeat: String(settings.heartbeat_every_seconds ?? ""),
  };
}

/** Settings with the values of the form; what has no field here stays. @param {Form} form @param {UserSettings} base */
export function settingsOf(form, base) {
  const { effort, ...rest } = base;
  const number = (/** @type {string} */ text) => (text.trim() === "" ? null : Number(text));
  return {
    ...rest,
    timezone: form.timezone.trim() || null,
    model: form.model || null,
    ...(form.effort && { effort: form.effort }),
    temperature: number(form.temperature),
    quiet_hours: form.quietFrom || form.quietTo ? { from: form.quietFrom, to: form.quietTo } : null,
    heartbeat_every_seconds: number(form.heartbeat),
  };
}

/** The fields in which two forms differ. @param {Form} one @param {Form} other */
export const differing = (one, other) => NAMES.filter((name) => one[name] !== other[name]);

/** What was changed in a form, on top of what is stored now. @param {Form} mine @param {Form} base what it began with @param {Form} stored @returns {Form} */
export const merged = (mine, base, stored) => ({ ...stored, ...Object.fromEntries(differing(mine, base).map((name) => [name, mine[name]])) });
