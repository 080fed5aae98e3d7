// Opens each page of fixtures/reports in headless Chromium, and fails if a page loads anything, runs anything or
// reports a problem, if a button shows the wrong steps, or if the keyboard does not reach the calls. Writes a picture of
// the top of each page beside it with --pictures.
//
//   npm install --prefix DIR playwright-core
//   NODE_PATH=DIR/node_modules CHROMIUM=/usr/bin/chromium node tests/reports/look.mjs [--pictures]

import { createRequire } from 'node:module';
import { readdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const { chromium } = createRequire(import.meta.url)('playwright-core');

const folder = join(dirname(fileURLToPath(import.meta.url)), '../../fixtures/reports');
const withPictures = process.argv.includes('--pictures');
const problems = [];

/** A page with listeners for everything that must not happen. */
async function open(browser, name, colorScheme) {
  const context = await browser.newContext({ colorScheme, viewport: { width: 1100, height: 900 } });
  const page = await context.newPage();
  const url = pathToFileURL(join(folder, name)).href;
  const report = (what) => problems.push(`${name}, ${colorScheme}: ${what}`);
  page.on('console', (message) => report(`console: ${message.text()}`));
  page.on('pageerror', (error) => report(`error: ${error}`));
  page.on('dialog', (dialog) => { report(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on('request', (request) => { if (request.url() !== url) report(`request: ${request.url()}`); });
  await page.goto(url);
  return { page, report };
}

/** Counts the steps that are visible. */
function steps(page, selector) {
  return page.locator(selector).evaluateAll((all) => all.filter((step) => step.checkVisibility()).length);
}

async function check(browser, name) {
  for (const scheme of ['light', 'dark']) {
    const { page, report } = await open(browser, name, scheme);
    const [red, green, blue] = await page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number));
    if ((red + green + blue < 200) !== (scheme === 'dark')) report('wrong background');
    if (withPictures && scheme === 'light') {
      const height = Math.min(1800, await page.evaluate(() => document.documentElement.scrollHeight));
      await page.screenshot({ path: join(folder, name.replace('.html', '.png')), fullPage: true, clip: { x: 0, y: 0, width: 1100, height } });
    }

    let reached = 0;
    for (let presses = 0; presses < 20; presses += 1) {
      await page.keyboard.press('Tab');
      reached += await page.evaluate(() => document.activeElement.closest('.call') !== null);
    }
    if (reached < 3) report(`the keyboard reaches ${reached} calls`);

    for (const [button, wanted] of [['#show-calls', '.call'], ['#show-changes', '.change'], ['#show-stopped', '.stopped']]) {
      await page.locator(button).check();
      const [shown, expected, all] = [await steps(page, '.step'), await steps(page, `.step${wanted}`), await page.locator(`.step${wanted}`).count()];
      if (shown !== expected || expected !== all) report(`${button} shows ${shown} steps, ${expected} of ${all} wanted ones`);
    }

    await page.emulateMedia({ media: 'print' });
    const hidden = await page.locator('pre').evaluateAll((all) => all.filter((text) => text.closest('.step').checkVisibility() && !text.checkVisibility({ contentVisibilityAuto: false })).length);
    if (hidden > 0) report(`${hidden} texts are missing in print`);
    await page.context().close();
  }
}

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
const names = readdirSync(folder).filter((name) => name.endsWith('.html'));
for (const name of names) await check(browser, name);
await browser.close();
for (const problem of problems) console.error(problem);
console.log(`${names.length} pages, ${problems.length} problems`);
process.exit(problems.length > 0 || names.length === 0 ? 1 : 0);
