// Lets Node find the dashboard's packages as a browser does: by the import map of its page.

import { readFileSync } from "node:fs";

const root = new URL("../../orchestrator/dashboard/", import.meta.url);
const map = /<script type="importmap">(.*?)<\/script>/s.exec(readFileSync(new URL("index.html", root), "utf8"))?.[1] ?? "{}";
const { imports } = JSON.parse(map);

export function resolve(name, context, next) {
  const path = imports[name]?.replace("/assets/@HASH@/", "");
  return path ? { url: new URL(path, root).href, shortCircuit: true } : next(name, context);
}
