import type { ChildProcess } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, symlinkSync } from 'node:fs';
import { request } from 'node:https';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { type Child, spawnChild, startChild } from './child-process.ts';
import { until } from './until.ts';

export { until } from './until.ts';

/** `gatehouse demo` as a real process, and a terminal beside it. */
export interface Demo {
  readonly url: string;
  readonly adminUrl: string;
  readonly folder: string;
  readonly child: ChildProcess;
  /** Everything it has printed so far. */
  readonly printed: () => string;
  /** The commands of the story, those that belong together under one number; the preparations under 0. */
  readonly steps: ReadonlyMap<number, readonly string[]>;
  /** Ends it as Ctrl-C does; tells the exit code. */
  stop(): Promise<number | null>;
}

const MAIN = fileURLToPath(new URL('../../src/main.ts', import.meta.url));
export const temporaryFolder = (): string => mkdtempSync(join(tmpdir(), 'gatehouse demo-'));

interface DemoOptions {
  readonly args?: readonly string[];
  readonly env?: NodeJS.ProcessEnv;
}

const environment = (env: NodeJS.ProcessEnv): NodeJS.ProcessEnv => ({
  PATH: process.env['PATH'],
  NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'],
  ...env,
});

export function startDemo(
  cwd: string,
  { args = [], env = {} }: DemoOptions = {},
): { readonly child: ChildProcess; readonly printed: () => string } {
  const child = spawnChild([process.execPath, MAIN, 'demo', ...args], { cwd, env: environment(env) });
  return { child: child.process, printed: child.output };
}

export async function openDemo(
  cwd: string,
  { args = ['--set', 'listen.port=0', '--set', 'admin.port=0'], env = {} }: DemoOptions = {},
): Promise<Demo> {
  const child: Child = await startChild([process.execPath, MAIN, 'demo', ...args], {
    cwd,
    env: environment(env),
    ready: (line) => line.includes('What happens is told below.'),
  });
  const printed = child.output;
  return {
    url: /gatehouse runs: (\S+)/.exec(printed())?.[1] ?? '',
    adminUrl: /admin listener +(\S+)/.exec(printed())?.[1] ?? '',
    folder: join(cwd, '.gatehouse'),
    child: child.process,
    printed,
    steps: stepsOf(printed()),
    stop: async () => (await child.stop('SIGINT')).code,
  };
}

function stepsOf(text: string): ReadonlyMap<number, readonly string[]> {
  const steps = new Map<number, string[]>();
  let number = 0;
  // A command goes on after a backslash at the end of its line.
  for (const command of text.split(/(?<!\\)\n/).filter((line) => line.startsWith('    '))) {
    const title = /^ {4}echo '# (\d+)\. /.exec(command);
    if (title) number = Number(title[1]);
    else steps.set(number, [...(steps.get(number) ?? []), command.slice(4)]);
  }
  return steps;
}

export interface Terminal {
  /** Runs one command as if it were typed; tells what it printed. */
  run(command: string): Promise<string>;
  close(): void;
}

/** One shell that stays, so that variables and functions live from line to line. */
export function openTerminal(shell: string, env: NodeJS.ProcessEnv = {}): Terminal {
  const child = spawnChild([shell], { env: environment(env) });
  child.write('exec 2>&1\n');
  let count = 0;
  let seen = 0;
  return {
    async run(command) {
      count += 1;
      const mark = `==end of ${count}==`;
      child.write(`${command}\necho '${mark}'\n`);
      await until(`the shell has run ${command}`, () => child.stdout().includes(`${mark}\n`, seen));
      const end = child.stdout().indexOf(mark, seen);
      const said = child.stdout().slice(seen, end);
      seen = end + mark.length + 1;
      return said;
    },
    close: () => void child.process.stdin.end(),
  };
}

/** A PATH on which only these programs are found. */
export function pathWithOnly(folder: string, programs: readonly string[]): string {
  const bin = join(folder, 'bin');
  mkdirSync(bin);
  for (const program of programs)
    for (const at of (process.env['PATH'] ?? '').split(delimiter)) {
      try {
        readFileSync(join(at, program));
        symlinkSync(join(at, program), join(bin, program));
        break;
      } catch {
        // Not in this folder of the PATH.
      }
    }
  return bin;
}

/** Goes through the confirmation pages as a browser without scripts does. */
export function openBrowser(ca: string) {
  const cookies = new Map<string, string>();
  let page = { url: '', text: '' };
  const send = (
    url: string,
    form?: URLSearchParams,
  ): Promise<{ status: number; location?: string; text: string }> =>
    new Promise((resolve, reject) => {
      const sent = request(
        url,
        {
          ca,
          agent: false,
          method: form === undefined ? 'GET' : 'POST',
          headers: {
            ...(cookies.size > 0 && { cookie: [...cookies].map((pair) => pair.join('=')).join('; ') }),
            ...(form !== undefined && {
              'content-type': 'application/x-www-form-urlencoded',
              origin: new URL(url).origin,
              'sec-fetch-site': 'same-origin',
            }),
          },
        },
        (response) => {
          for (const line of response.headers['set-cookie'] ?? []) {
            const [, name = '', value = ''] = /^([^=]+)=([^;]*)/.exec(line) ?? [];
            cookies.set(name, value);
          }
          let text = '';
          response.setEncoding('utf8').on('data', (part: string) => {
            text += part;
          });
          response.on('error', reject);
          response.on('end', () => {
            const { location } = response.headers;
            resolve({ status: response.statusCode ?? 0, text, ...(location !== undefined && { location }) });
          });
        },
      );
      sent.on('error', reject);
      sent.end(form?.toString());
    });
  const visit = async (url: string, form?: URLSearchParams): Promise<string> => {
    const answer = await send(url, form);
    if (answer.location !== undefined) return visit(new URL(answer.location, url).href);
    page = { url, text: answer.text };
    return answer.text;
  };
  return {
    open: (url: string) => visit(url),
    /** Fills in and sends the form of the page whose action ends so; hidden and filled-in fields go along. */
    submit(action: string, typed: Readonly<Record<string, string>> = {}): Promise<string> {
      const form = page.text
        .split('<form ')
        .slice(1)
        .map((part) => part.slice(0, part.indexOf('</form>')))
        .find((part) => new RegExp(`action="[^"]*${action}"`).test(part));
      if (form === undefined) throw new Error(`no form ${action} on this page: ${page.text}`);
      const fields = new URLSearchParams();
      for (const [input] of form.matchAll(/<input [^>]*>/g))
        fields.set(/ name="([^"]*)"/.exec(input)?.[1] ?? '', / value="([^"]*)"/.exec(input)?.[1] ?? '');
      for (const [name, value] of Object.entries(typed)) fields.set(name, value);
      const target = /action="([^"]*)"/.exec(form)?.[1] ?? '';
      return visit(new URL(target, page.url).href, fields);
    },
  };
}
