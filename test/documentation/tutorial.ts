import { mkdirSync, symlinkSync } from 'node:fs';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect } from 'vitest';
import { type Child, spawnChild } from '../support/child-process.ts';
import { openTerminal, type Terminal } from '../support/demo.ts';
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

/** What the reader of a tutorial sees, and does outside the terminals. */
export interface Reader {
  readonly folder: string;
  /** All output so far, with the ports of the tutorial. */
  readonly screen: () => string;
  /** Replaces the ports of the tutorial with those of the test. */
  readonly toTest: (text: string) => string;
  /** Whether the program that was started last is running. */
  readonly isRunning: () => boolean;
}

type Actions = Readonly<Record<string, (reader: Reader) => Promise<void>>>;

export interface TutorialOptions {
  /** Folders that are searched for programs first. */
  readonly path?: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  /** Steps outside the terminals, by the text of their comment. */
  readonly actions?: Actions;
  /** What a step means. Default: as its info string says. */
  readonly interpret?: (step: Step) => Meaning | undefined;
  /** Where no other program uses the ports of the page. */
  readonly keepsPorts?: boolean;
}

type Meaning = 'execute' | 'start' | 'compare' | 'perform';

const MEANINGS: Readonly<Record<string, Meaning>> = {
  'sh executed': 'execute',
  'sh started': 'start',
  'text output': 'compare',
  reader: 'perform',
};

/**
 * Follows a tutorial as written, in an empty folder, with free ports instead of those of the page:
 * - `sh executed`: typed into the first terminal; must succeed;
 * - `sh started`: typed into a new terminal, where it keeps running;
 * - `text output`: what the last command has printed; several after one command are parts of its output.
 */
export async function followTutorial(page: string, options: TutorialOptions = {}): Promise<void> {
  const { interpret = ({ kind }) => MEANINGS[kind], keepsPorts = false } = options;
  const session = new Session(keepsPorts ? new Map() : await reservePorts(page), options);
  try {
    for (const step of readSteps(page)) {
      const meaning = interpret(step);
      if (meaning !== undefined) await session[meaning](step.text);
    }
  } finally {
    await session.close();
  }
}

/** The admin port of `gatehouse init`. */
const ADMIN_PORT = '9443';
/** Four digits in a place where they can only be a port. */
const PORT = /(?<=localhost:|localhost%3A|127\.0\.0\.1:|\bport(?:[= ]|: )|listen\()\d{4}\b/g;

/** A free port for each port of the page. */
async function reservePorts(page: string): Promise<ReadonlyMap<string, string>> {
  const ports = new Map<string, string>();
  for (const port of new Set([ADMIN_PORT, ...(readPage(page).match(PORT) ?? [])]))
    ports.set(port, String(await freePort()));
  return ports;
}

/** `npm install` may take long on a busy machine. */
const COMMAND_SECONDS = 300;

interface LastCommand {
  readonly command: string;
  readonly read: () => string;
  /** Undefined if the command has ended. */
  readonly child?: Child;
  /** The end of the output that was compared. */
  from: number;
}

/** The terminals of a reader. */
class Session {
  readonly #folder = tempFolder('tutorial');
  readonly #ports: ReadonlyMap<string, string>;
  readonly #actions: Actions;
  readonly #env: NodeJS.ProcessEnv;
  readonly #terminal: Terminal;
  readonly #started: Child[] = [];
  #screen = '';
  #last: LastCommand | undefined;

  constructor(ports: ReadonlyMap<string, string>, { actions = {}, ...options }: TutorialOptions) {
    this.#ports = ports;
    this.#actions = actions;
    this.#env = createEnvironment(this.#folder.path, options, ports.get(ADMIN_PORT) ?? ADMIN_PORT);
    this.#terminal = openTerminal('/bin/sh', this.#env, this.#folder.path);
  }

  async execute(command: string): Promise<void> {
    const output = await this.#terminal.run(`${this.#toTest(command)}status=$?`, COMMAND_SECONDS);
    const shown = this.#toTutorial(output);
    this.#screen += shown;
    const status = await this.#terminal.run('echo $status');
    expect(status, `exit status of ${command}\n${shown}`).toBe('0\n');
    this.#last = { command, read: () => shown, from: 0 };
  }

  start(command: string): void {
    const args = ['/bin/sh', '-c', `exec ${this.#toTest(command)}`];
    const child = spawnChild(args, { cwd: this.#folder.path, env: this.#env });
    this.#started.push(child);
    this.#last = { command, child, read: () => this.#toTutorial(child.output()), from: 0 };
  }

  async compare(expected: string): Promise<void> {
    const last = this.#last;
    if (last === undefined) throw new Error('there is no command before this output');
    const { command, read, child, from } = last;
    if (child === undefined) {
      expect(read(), command).toMatch(toPattern(expected));
      return;
    }
    const find = (): RegExpExecArray | null => toPartialPattern(expected).exec(read().slice(from));
    const found = await until(`${command} prints\n${expected}`, async () => {
      if (child.isRunning()) return find();
      await child.ended;
      return find() ?? expect.fail(`${command} has ended:\n${read()}`);
    });
    last.from = from + found.index + found[0].length;
  }

  async perform(text: string): Promise<void> {
    // The first terminal is the one for commands.
    const [, terminal] = /^press Ctrl-C in terminal (\d)$/.exec(text) ?? [];
    if (terminal !== undefined) {
      await this.#started[Number(terminal) - 2]?.stop('SIGINT');
      return;
    }
    const action = this.#actions[text];
    if (action === undefined) throw new Error(`the test does not know how to: ${text}`);
    await action({
      folder: this.#folder.path,
      screen: () => this.#screen + this.#started.map((child) => this.#toTutorial(child.output())).join(''),
      toTest: (shown) => this.#toTest(shown),
      isRunning: () => this.#started.at(-1)?.isRunning() === true,
    });
  }

  async close(): Promise<void> {
    this.#terminal.close();
    for (const child of this.#started.toReversed()) await child.stop('SIGINT');
    this.#folder.remove();
  }

  #toTest(text: string): string {
    return text.replaceAll(PORT, (port) => this.#ports.get(port) ?? port);
  }

  #toTutorial(text: string): string {
    let result = text.replaceAll('\r\n', '\n');
    for (const [port, test] of this.#ports) result = result.replaceAll(test, port);
    return result;
  }
}

function createEnvironment(
  folder: string,
  { path = [], env = {} }: TutorialOptions,
  adminPort: string,
): NodeJS.ProcessEnv {
  const bin = join(folder, '.bin');
  mkdirSync(bin);
  symlinkSync(join(ROOT, 'bin/gatehouse'), join(bin, 'gatehouse'));
  return {
    PATH: [bin, ...path, process.env['PATH']].join(delimiter),
    HOME: folder,
    NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'],
    TMPDIR: process.env['TMPDIR'],
    TEST_RUN_FOLDER: process.env['TEST_RUN_FOLDER'],
    GATEHOUSE_ADMIN__PORT: adminPort,
    // As in the terminals of a reader.
    GATEHOUSE_LOG__FORMAT: 'text',
    GATEHOUSE_SHUTDOWN__PRE_STOP: '0s',
    ...env,
  };
}
