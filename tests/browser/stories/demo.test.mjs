// The demo job of docker/up.sh, watched to its end. With GANTRY_TEST_PICTURE, a file, it is also the picture of the README.

import assert from "node:assert/strict";
import { test } from "node:test";
import { api, base, check, logInByToken, newBrowser, state } from "../browser.mjs";

test("the demo job is watched to its result, and its changes are read", async () => {
  const page = await logInByToken(await newBrowser({ colorScheme: "light", viewport: { width: 1240, height: 700 } }));
  const { id } = await api(page, "POST", "/api/jobs", { prompt: "Find the median of a list of numbers, with tests.", title: "Median with tests", limits: { max_cost_usd: 1 } });
  await page.goto(`${base}/jobs/${id}`);
  const activity = page.getByRole("list", { name: "Activity" });
  await activity.getByRole("button", { name: /shell/ }).first().waitFor({ timeout: 30_000 });
  await state(page, "completed");
  await page.getByText("The program works: all").first().waitFor();
  await check(page, "the demo job at its end");
  if (process.env.GANTRY_TEST_PICTURE) await page.screenshot({ path: process.env.GANTRY_TEST_PICTURE });
  await page.getByRole("link", { name: /^Changes/ }).click();
  await page.getByText("sorted(values)").first().waitFor();
  const files = await page.getByRole("link", { name: /median\.py/ }).count();
  assert.ok(files >= 2, `${files} links to files`);
});
