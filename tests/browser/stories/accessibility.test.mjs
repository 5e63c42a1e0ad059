// Every page in both colours and widths: the rules of WCAG 2.2 AA.

import { test } from "node:test";
import { base, check, given, heading, logInByToken, newBrowser } from "../browser.mjs";

const PAGES = [["/login", "Log in"], ["/", "Now"], ["/jobs", "Jobs"], ["/jobs/new", "New job"],
  ["/inbox", "Inbox"], ["/inbox?tab=resolved", "Inbox"], ["/inbox?tab=news", "Inbox"], ["/routines", "Routines"], ["/routines/new", "New routine"], ["/routines/new?as=json", "New routine"],
  ["/routines/schedule", "Schedule"], ["/runs", "Runs"], ["/chat", "Chat"], ["/memory", "Memory"], ["/memory?show=new", "Memory"], ["/usage", "Usage"], ["/usage?by=model&as=table", "Usage"],
  ["/settings", "Settings"], ["/settings/tools", "Settings"], ["/settings/secrets", "Settings"], ["/settings/sessions", "Settings"], ["/settings/appearance", "Settings"], ["/admin", "Admin"], ["/nothing", "Page not found"]];
const ADMIN_PAGES = ["system", "audit", "tools", "mcp"];
for (const colorScheme of ["light", "dark"]) {
  for (const width of [1280, 360]) {
    test(`pages are accessible: ${colorScheme}, ${width} px`, async () => {
      const context = await newBrowser({ colorScheme, viewport: { width, height: 800 } });
      const page = await logInByToken(context);
      for (const [path, name] of PAGES) {
        await page.goto(base + path);
        await heading(page, name);
        await check(page, path);
      }
      await page.goto(base);
      await page.getByRole("button", { name: "Keyboard" }).click();
      await page.getByRole("dialog").waitFor();
      await check(page, "the list of keys");
      await page.keyboard.press("Escape");
      await page.getByRole("button", { name: "Search" }).click();
      await page.getByRole("combobox", { name: "Page, job, routine, document or command" }).waitFor();
      await check(page, "the search");
      const admin = await logInByToken(await newBrowser({ colorScheme, viewport: { width, height: 800 } }), "/admin", given("GANTRY_TEST_ADMIN_TOKEN"));
      for (const tab of ADMIN_PAGES) {
        await admin.goto(`${base}/admin/${tab}`);
        await heading(admin, "Admin");
        await admin.locator("main .loading").first().waitFor({ state: "detached" });
        await check(admin, `/admin/${tab}`);
      }
    });
  }
}
