// npm run recording: records the terminal of `npm start` as docs/images/demo.svg, while its walkthrough is followed.
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type Demo, openTerminal, startDemo, temporaryFolder, until } from '../test/support/demo.ts';
import { createAgent, FormBrowser } from '../test/support/form-browser.ts';

const TARGET = fileURLToPath(new URL('../docs/images/demo.svg', import.meta.url));
const COLUMNS = 88;
/** Lines of the first step of the walkthrough, with its title. */
const STEP_LINES = 4;
const FONT_SIZE = 13;
const COLUMN = FONT_SIZE * 0.6;
const LINE = 18;
const MARGIN = 16;
const HEADER = 30;

/** One line of the terminal, with the time in seconds at which it appears. */
export interface RecordedLine {
  readonly text: string;
  readonly at: number;
  readonly kind: 'command' | 'output' | 'event';
}

const escapeXml = (text: string): string =>
  text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');

const cut = (text: string): string => (text.length > COLUMNS ? `${text.slice(0, COLUMNS - 1)}…` : text);

/** The lines appear one after another; all at once for readers who prefer reduced motion. */
export function renderRecording(lines: readonly RecordedLine[]): string {
  const width = Math.ceil(COLUMNS * COLUMN) + 2 * MARGIN;
  const height = HEADER + lines.length * LINE + 2 * MARGIN;
  const texts = lines.flatMap(({ text, at, kind }, index) => {
    if (text === '') return [];
    const shown = cut(text);
    // The width of a column differs between fonts.
    const length = `textLength="${(shown.trimStart().length * COLUMN).toFixed(1)}"`;
    const x = MARGIN + (shown.length - shown.trimStart().length) * COLUMN;
    const y = HEADER + MARGIN + index * LINE + FONT_SIZE;
    return `  <text class="${kind}" x="${Number(x.toFixed(1))}" y="${y}" ${length} style="animation-delay:${at.toFixed(1)}s">${escapeXml(shown.trimStart())}</text>`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img" aria-labelledby="title desc" font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="${FONT_SIZE}">
  <title id="title">Terminal: npm start</title>
  <desc id="desc">npm start prepares the demo, prints its addresses and a walkthrough to paste into another terminal, and then logs events: tokens issued, refreshed and revoked, and a device that a user confirms.</desc>
  <style>
    .page { fill: #f8fafc; stroke: #94a3b8; }
    .dot { fill: #cbd5e1; }
    text { fill: #334155; animation: show 0.2s both; white-space: pre; }
    .command { fill: #0f172a; font-weight: 700; }
    .event { fill: #1d4ed8; }
    @keyframes show { from { opacity: 0; } }
    @media (prefers-reduced-motion: reduce) { text { animation: none; } }
    @media (prefers-color-scheme: dark) {
      .page { fill: #0f172a; stroke: #475569; }
      .dot { fill: #475569; }
      text { fill: #cbd5e1; }
      .command { fill: #f8fafc; }
      .event { fill: #93c5fd; }
    }
  </style>
  <rect class="page" x="0.5" y="0.5" width="${width - 1}" height="${height - 1}" rx="8"/>
  <circle class="dot" cx="20" cy="18" r="5"/><circle class="dot" cx="38" cy="18" r="5"/><circle class="dot" cx="56" cy="18" r="5"/>
${texts.join('\n')}
</svg>
`;
}

/** Confirms the device as a user does in a browser. */
async function approve(demo: Demo, address: string, instruction: string): Promise<void> {
  const agent = createAgent({ ca: readFileSync(join(demo.folder, 'pki/ca.pem'), 'utf8') });
  try {
    const browser = new FormBrowser({ agent });
    await browser.open(/Open (\S+)/.exec(address)?.[1] ?? '');
    await browser.submit('/device');
    const [, user_name = '', password = ''] = /sign in as (\w+), password (\S+)/.exec(instruction) ?? [];
    await browser.submit('/sign-in', { user_name, password });
    await browser.submit('/approve');
  } finally {
    await agent.destroy();
  }
}

/** Follows the walkthrough, to the refresh of the token of the device. */
async function follow(demo: Demo): Promise<void> {
  const terminal = openTerminal('/bin/sh');
  try {
    const outputs: string[] = [];
    for (const step of [0, 1, 2, 3, 4, 5])
      for (const command of demo.steps.get(step) ?? []) outputs.push(await terminal.run(command));
    const [address = '', instruction = ''] = outputs.slice(-2);
    await approve(demo, address, instruction);
    const exchange = demo.steps.get(6)?.[0] ?? '';
    // RFC 8628 §3.5: the interval between two requests.
    await until('the device has its token', async () =>
      /"access_token"/.test(await terminal.run(`sleep 1; ${exchange}`)),
    );
    for (const command of demo.steps.get(7) ?? []) await terminal.run(command);
    await until('the refresh is logged', () => demo.printed().includes('token refreshed'));
  } finally {
    terminal.close();
  }
}

/** The output with the default ports and a short path. */
export const normalize = (text: string, demo: Pick<Demo, 'url' | 'adminUrl' | 'folder'>): string =>
  text
    .replaceAll(demo.url, 'https://localhost:8443')
    .replaceAll(demo.adminUrl, 'http://127.0.0.1:9443')
    .replaceAll(/(demo API +http:\/\/127\.0\.0\.1:)\d+/g, '$19080')
    .replaceAll(demo.folder, '~/gatehouse/.gatehouse')
    .replaceAll(/'(~\/gatehouse\/\.gatehouse)'/g, '$1');

/** The terminal: addresses, the first step of the walkthrough, and the events. */
export function toLines(printed: string): RecordedLine[] {
  const [walkthrough = '', events = ''] = printed.split(/(?<=Events are logged below\.\n)/);
  const before = walkthrough.trimEnd().split('\n');
  const find = (pattern: RegExp): number => before.findIndex((line) => pattern.test(line));
  const step = find(/^ {4}echo '# 1\. /);
  const shown = [
    ...before.slice(0, find(/^ {2}files /) + 1),
    '',
    before[find(/^Paste this/)] ?? '',
    ...before.slice(step, step + STEP_LINES),
    '    …',
    before.at(-1) ?? '',
  ];
  const lines: RecordedLine[] = [{ text: '$ npm start', at: 0, kind: 'command' }];
  for (const text of shown) lines.push({ text, at: lines.length < 2 ? 0.6 : 1.6, kind: 'output' });
  lines.push({ text: '', at: 0, kind: 'output' });
  let at = 2;
  for (const text of events.split('\n').filter((line) => line !== '')) {
    const isEvent = /^\d\d:\d\d:\d\d {2}/.test(text);
    at += 0.9;
    lines.push({ text, at, kind: isEvent ? 'event' : 'output' });
  }
  return lines;
}

if (import.meta.main) {
  const folder = temporaryFolder();
  try {
    const demo = await startDemo(folder, {
      args: ['--set', 'listen.port=0', '--set', 'admin.port=0', '--set', 'device.interval=1s'],
    });
    try {
      await follow(demo);
    } finally {
      await demo.stop();
    }
    writeFileSync(TARGET, renderRecording(toLines(normalize(demo.printed(), demo))));
    console.log(TARGET);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
