// Drives a headless Chromium for the tests: reads commands as JSON lines, and answers each with a line.
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

const require = createRequire(process.argv[2]);
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const browser = await chromium.launch({ executablePath: process.argv[3], args: ["--no-sandbox", "--disable-gpu"] });
let context, page, problems, requests;

const commands = {
  async open({ url, width = 1280, height = 800, dark = false, reduced = true, csp = true }) {
    await context?.close();
    context = await browser.newContext({
      viewport: { width, height }, colorScheme: dark ? "dark" : "light", acceptDownloads: true,
      reducedMotion: reduced ? "reduce" : "no-preference", bypassCSP: !csp,
    });
    page = await context.newPage();
    problems = [];
    requests = [];
    page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
    page.on("pageerror", (error) => problems.push(String(error)));
    page.on("dialog", (dialog) => { problems.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
    page.on("request", (request) => requests.push(request.url()));
    await page.goto(url);
  },
  go: ({ hash }) => page.evaluate((to) => { location.hash = to; }, hash),
  wait: ({ selector, text }) => page.locator(selector).filter(text ? { hasText: text } : {}).first().waitFor({ timeout: 15000 }),
  gone: ({ selector }) => page.locator(selector).first().waitFor({ state: "detached", timeout: 15000 }),
  click: ({ selector }) => page.locator(selector).first().click({ timeout: 15000 }),
  fill: ({ selector, text }) => page.locator(selector).first().fill(text),
  select: ({ selector, value }) => page.locator(selector).first().selectOption(value),
  press: ({ key }) => page.keyboard.press(key),
  text: ({ selector }) => page.locator(selector).allInnerTexts(),
  frameText: ({ selector }) => page.frameLocator("iframe").locator(selector).allInnerTexts(),
  frameWait: ({ selector, text }) => page.frameLocator("iframe").locator(selector).filter(text ? { hasText: text } : {}).first().waitFor({ timeout: 15000 }),
  frameClick: ({ selector }) => page.frameLocator("iframe").locator(selector).first().click({ timeout: 15000 }),
  script: ({ path }) => page.addScriptTag({ path }).then(() => null),
  evaluate: ({ code }) => page.evaluate(code),
  reload: () => page.reload(),
  focused: () => page.evaluate(() => [document.activeElement.tagName, document.activeElement.innerText || document.activeElement.getAttribute("aria-label") || document.activeElement.id]),
  shot: ({ path, full = false }) => page.screenshot({ path, fullPage: full }).then(() => null),
  problems: () => problems,
  requests: () => requests,
  async download({ selector }) {
    const [found] = await Promise.all([page.waitForEvent("download"), page.locator(selector).first().click()]);
    return { name: found.suggestedFilename(), path: await found.path() };
  },
  // The page's own policy admits no other scripts: axe runs in a context that bypasses it.
  async axe() {
    await page.evaluate(axe);
    return page.evaluate(async () => {
      const found = await window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] });
      return found.violations.map((one) => ({ id: one.id, impact: one.impact, nodes: one.nodes.slice(0, 4).map((node) => `${node.html.slice(0, 160)} | ${node.failureSummary}`) }));
    });
  },
  async close() {
    await browser.close();
    setImmediate(() => process.exit(0));
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...given } = JSON.parse(line);
  try {
    const answer = await commands[command](given);
    process.stdout.write(`${JSON.stringify({ answer: answer ?? null })}\n`);
  } catch (error) {
    process.stdout.write(`${JSON.stringify({ error: String(error).slice(0, 2000) })}\n`);
  }
}
