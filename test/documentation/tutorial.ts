import { mkdirSync, symlinkSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect } from 'vitest';
import { type Child, spawnChild } from '../support/child-process.ts';
import { openTerminal } from '../support/demo.ts';
import { freePort } from '../support/ports.ts';
import { tempFolder } from '../support/temp-folder.ts';
import { until } from '../support/until.ts';
import { PAGES, readPage } from './pages.ts';
import { toPartialPattern, toPattern } from './transcripts.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));

export const TUTORIALS: readonly string[] = PAGES.filter((page) =>
  /^docs\/tutorials\/(?!README)[\w-]+\.md$/.test(page),
);

/** A part of a tutorial that a test acts on: a code block, or a comment that names what the reader does elsewhere. */
export interface Step {
  /** The info string of the block, or `reader`. */
  readonly kind: string;
  readonly text: string;
}

const STEP = /^```(\S[^\n]*)\n([\s\S]*?)^```$|^<!-- reader: (.+) -->$/gm;

export const readSteps = (page: string): readonly Step[] =>
  [...readPage(page).matchAll(STEP)].map(([, info, text = '', action]) =>
    action === undefined ? { kind: info ?? '', text } : { kind: 'reader', text: action },
  );

/** What a reader sees in the terminals, and where. */
export interface Reader {
  readonly folder: string;
  /** All output so far, with the ports of the tutorial. */
  readonly screen: () => string;
  /** Replaces the ports of the tutorial with those of the test. */
  readonly toTest: (text: string) => string;
  /** Whether the program that was started last is running. */
  readonly isRunning: () => boolean;
}

export interface TutorialOptions {
  /** Folders that are searched for programs first. */
  readonly path?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  /** Steps outside the terminals, by the text of their comment. */
  readonly actions?: Readonly<Record<string, (reader: Reader) => Promise<void>>>;
}

interface LastCommand {
  readonly command: string;
  readonly read: () => string;
  readonly isComplete: boolean;
  /** The end of the output that was compared. */
  from: number;
}

/** The admin port of `gatehouse init`. */
const ADMIN_PORT = '9443';
/** Ports in tutorials are written in places where another number would not be mistaken for one. */
const PORT = /(?<=localhost:|127\.0\.0\.1:|\bport[= ]|\bport: |"port":|listen\()\d{4}\b/g;

/**
 * Follows a tutorial as written, in an empty folder, with free ports instead of those of the page:
 * - `sh executed`: typed into the first terminal; must succeed;
 * - `sh started`: typed into a new terminal, where it keeps running;
 * - `text output`: what the last command has printed; several after one command are parts of its output.
 */
export async function followTutorial(page: string, options: TutorialOptions = {}): Promise<void> {
  const folder = tempFolder('tutorial');
  const ports = new Map<string, string>();
  for (const port of new Set([ADMIN_PORT, ...(readPage(page).match(PORT) ?? [])]))
    ports.set(port, String(await freePort()));
  const toTest = (text: string): string => text.replaceAll(PORT, (port) => ports.get(port) ?? port);
  const toTutorial = (text: string): string => {
    let result = text.replaceAll('\r\n', '\n');
    for (const [port, test] of ports) result = result.replaceAll(test, port);
    return result;
  };
  const env = createEnvironment(folder.path, options, ports.get(ADMIN_PORT) ?? '');
  const terminal = openTerminal('/bin/sh', env);
  const started: Child[] = [];
  let screen = '';
  let last: LastCommand | undefined;
  const reader: Reader = {
    folder: folder.path,
    screen: () => screen + started.map((child) => toTutorial(child.output())).join(''),
    toTest,
    isRunning: () => started.at(-1)?.isRunning() === true,
  };

  const execute = async (command: string): Promise<void> => {
    const output = toTutorial(await terminal.run(`${toTest(command)}status=$?`));
    screen += output;
    const status = await terminal.run('echo $status');
    expect(status.trim(), `exit status of ${command}\n${output}`).toBe('0');
    last = { command, read: () => output, isComplete: true, from: 0 };
  };
  const start = (command: string): void => {
    const child = spawnChild(['/bin/sh', '-c', `exec ${toTest(command)}`], { cwd: folder.path, env });
    started.push(child);
    last = { command, read: () => toTutorial(child.output()), isComplete: false, from: 0 };
  };
  const compare = async (expected: string): Promise<void> => {
    if (last === undefined) throw new Error('there is no command before this output');
    const { command, read, isComplete, from } = last;
    if (isComplete) {
      expect(read(), command).toMatch(toPattern(expected));
      return;
    }
    const find = (): RegExpExecArray | null => toPartialPattern(expected).exec(read().slice(from));
    const child = started.at(-1);
    const found = await until(`${command} prints\n${expected}`, async () => {
      if (child?.isRunning() !== false) return find();
      await child.ended;
      return find() ?? expect.fail(`${command} has ended:\n${read()}`);
    });
    last.from = from + found.index + found[0].length;
  };

  try {
    await terminal.run(`cd '${folder.path}'`);
    for (const { kind, text } of readSteps(page)) {
      if (kind === 'sh executed') await execute(text);
      else if (kind === 'sh started') start(text);
      else if (kind === 'text output') await compare(text);
      else if (kind === 'reader') await perform(text, { ...options.actions, ...createKeys(started) }, reader);
    }
  } finally {
    terminal.close();
    for (const child of started.toReversed()) await child.stop('SIGINT');
    folder.remove();
  }
}

function createEnvironment(
  folder: string,
  { path = [], env = {} }: TutorialOptions,
  adminPort: string,
): NodeJS.ProcessEnv {
  // Outside the reader's folder.
  const bin = join(folder, '.bin');
  mkdirSync(bin);
  symlinkSync(join(ROOT, 'bin/gatehouse.js'), join(bin, 'gatehouse'));
  return {
    PATH: [bin, ...path, process.env['PATH']].join(delimiter),
    HOME: folder,
    NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'],
    TMPDIR: process.env['TMPDIR'],
    TEST_RUN_FOLDER: process.env['TEST_RUN_FOLDER'],
    GATEHOUSE_ADMIN__PORT: adminPort,
    // Otherwise each gatehouse serves for five more seconds after Ctrl-C.
    GATEHOUSE_SHUTDOWN__PRE_STOP: '0s',
    ...env,
  };
}

type Actions = Readonly<Record<string, (reader: Reader) => Promise<void>>>;

async function perform(text: string, actions: Actions, reader: Reader): Promise<void> {
  const action = actions[text];
  if (action === undefined) throw new Error(`the test does not know how to: ${text}`);
  await action(reader);
}

/** `press Ctrl-C in terminal 2`: the first terminal is the one for commands. */
const createKeys = (started: readonly Child[]): Actions =>
  Object.fromEntries(
    started.map((child, index) => [
      `press Ctrl-C in terminal ${index + 2}`,
      async () => void (await child.stop('SIGINT')),
    ]),
  );
