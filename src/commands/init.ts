import { existsSync, mkdirSync, writeFileSync } from 'node:fs';
import { dirname, relative, resolve } from 'node:path';
import { createInterface } from 'node:readline';
import { formatProblems, loadSettings } from '../config/load.ts';
import { hashPassword } from '../identity/password-hasher.ts';
import {
  type Command,
  type CommandContext,
  CommandError,
  EXIT,
  ExitError,
  type Option,
  UsageError,
  writeJson,
} from './command.ts';
import { generatePassword } from './generate-password.ts';
import { getScope, MCP_PATH, renderConfiguration } from './init/configuration.ts';
import { type Answers, isLocal, QUESTIONS, type Question } from './init/questions.ts';
import { isReservedName } from './pki/private-files.ts';
import { quoteForShell } from './quote.ts';

/** Without a terminal, these have no default unless --yes is given. */
const REQUIRED: readonly string[] = ['public-url', 'upstream'];

export const command: Command = {
  name: 'init',
  summary: 'writes a configuration to start from; asks for what it needs',
  usage: ['gatehouse init [FILE]', 'gatehouse init --public-url URL --upstream URL [options] [FILE]'],
  options: {
    ...Object.fromEntries(Object.entries(QUESTIONS).map(([name, question]) => [name, createOption(question)])),
    yes: { help: 'ask no questions; use the defaults of omitted options' },
  },
  positionals: { min: 0, max: 1, complete: ['file'] },
  notes: [
    'FILE is gatehouse.yaml by default. An existing file is never overwritten. The file has mode 0600: for the systemd service, install it with mode 0640 and group gatehouse.',
    'Questions are asked only if standard input is a terminal; an option answers its question.',
    'It then prints the next steps.',
  ],
  async run(context) {
    const file = context.positionals[0] ?? 'gatehouse.yaml';
    const path = resolve(context.cwd, file);
    if (existsSync(path))
      throw new CommandError(
        `${file} exists already, and nothing is overwritten; name another file: gatehouse init FILE`,
        EXIT.cannotCreate,
      );
    const answers = await collectAnswers(context);
    const hasLocalUser = answers['sign-in'] === 'password';
    const password = hasLocalUser ? generatePassword() : undefined;
    const text = renderConfiguration(answers, password === undefined ? '' : await hashPassword(password));
    requireValid(context, path, text);
    writeConfiguration(path, file, text);
    const next = listNextSteps(context, answers, file);
    if (context.json)
      return writeJson(context, {
        file: path,
        ...(password !== undefined && { user: answers.user, password }),
        next: next.map(([, nextCommand]) => nextCommand),
      });
    context.stdout(`Wrote ${file}.\n`);
    if (password !== undefined)
      context.stdout(`The password for ${answers.user} is ${password}. It is not shown again.\n`);
    context.stdout('\nNext:\n');
    for (const [index, [step, nextCommand]] of next.entries())
      context.stdout(`${index + 1}. ${step}:\n     ${nextCommand}\n`);
    if (answers['client-type'] === 'mcp')
      context.stdout(
        `Agents connect to ${new URL(MCP_PATH, answers['public-url']).href} with the client ID ${answers.client}.\n`,
      );
  },
};

function createOption({ choices = {}, text, fallback, when, value }: Question): Option {
  const details = [
    ...Object.entries(choices).map(([name, meaning]) => `${name}: ${meaning}`),
    ...(when === undefined ? [] : [`with ${formatCondition(when)}`]),
    ...(typeof fallback === 'string' ? [`default: ${fallback}`] : []),
  ].join('; ');
  return {
    value: value ?? Object.keys(choices).join('|'),
    help: `${text.charAt(0).toLowerCase()}${text.slice(1)}${details === '' ? '' : ` (${details})`}`,
  };
}

function formatCondition([option, ...answers]: NonNullable<Question['when']>): string {
  return `--${option} ${answers.join(' or ')}`;
}

async function collectAnswers(context: CommandContext): Promise<Answers> {
  const names = Object.keys(QUESTIONS) as (keyof Answers)[];
  const answers = Object.fromEntries(names.map((name) => [name, ''])) as Record<keyof Answers, string>;
  using prompt = context.stdin.isTTY === true && !context.flag('yes') ? openPrompt(context) : undefined;
  for (const name of names) {
    const question = QUESTIONS[name];
    const { when, isOptionOnly = false } = question;
    const given = context.option(name);
    if (when !== undefined && !when.slice(1).includes(answers[when[0]])) {
      if (given !== undefined) throw new UsageError(`gatehouse init: --${name} needs ${formatCondition(when)}`);
      continue;
    }
    const answer =
      given ?? (prompt && !isOptionOnly ? await prompt.ask(question, answers) : getDefault(context, name, answers));
    const problem = findProblem(question, answer, answers);
    if (problem !== undefined) throw new UsageError(`gatehouse init: --${name} ${problem}`);
    answers[name] = answer;
  }
  return answers;
}

const getFallback = ({ fallback }: Question, answers: Answers): string =>
  typeof fallback === 'function' ? fallback(answers) : fallback;

function getDefault(context: CommandContext, name: keyof Answers, answers: Answers): string {
  if (context.flag('yes') || !REQUIRED.includes(name)) return getFallback(QUESTIONS[name], answers);
  const missing = REQUIRED.filter((option) => context.option(option) === undefined);
  throw new UsageError(
    `gatehouse init: standard input is not a terminal, so ${missing.map((option) => `--${option}`).join(' and ')} must be given, or --yes for the defaults`,
  );
}

const findProblem = ({ choices, validate }: Question, answer: string, answers: Answers): string | undefined =>
  choices !== undefined && !Object.hasOwn(choices, answer)
    ? `must be ${Object.keys(choices).join(' or ')}`
    : validate?.(answer, answers);

/** Asks on standard error, so that standard output has the result only. */
function openPrompt({ stdin, stderr }: CommandContext) {
  const lines = createInterface({ input: stdin, terminal: false });
  const iterator = lines[Symbol.asyncIterator]();
  stderr('Enter accepts the value in brackets; Ctrl-C cancels.\n');
  return {
    async ask(question: Question, answers: Answers): Promise<string> {
      const fallback = getFallback(question, answers);
      const choices = Object.entries(question.choices ?? {});
      stderr(`\n${question.text}${choices.length === 0 ? '' : ':'}\n`);
      for (const [name, meaning] of choices) stderr(`  ${name.padEnd(11)} ${meaning}\n`);
      for (;;) {
        stderr(`[${fallback}] > `);
        const { done, value } = await iterator.next();
        if (done === true) throw new CommandError('cancelled; nothing was written', EXIT.usage);
        const text = value.trim() || fallback;
        const problem = findProblem(question, text, answers);
        if (problem === undefined) return text;
        stderr(`This ${problem}.\n`);
      }
    },
    [Symbol.dispose]: () => lines.close(),
  };
}

/** Answers may contradict each other in ways that only the schema knows. */
function requireValid(context: CommandContext, path: string, text: string): void {
  const result = loadSettings({ file: path, text, env: {}, cwd: context.cwd });
  if (result.ok) return;
  context.stderr(formatProblems(result));
  context.stderr('gatehouse: nothing was written\n');
  throw new ExitError(EXIT.configuration);
}

function writeConfiguration(path: string, file: string, text: string): void {
  try {
    mkdirSync(dirname(path), { recursive: true });
    // `wx`: a file that was created in the meantime is not replaced either.
    writeFileSync(path, text, { mode: 0o600, flag: 'wx' });
  } catch (error) {
    const { code = 'unknown error' } = error as NodeJS.ErrnoException;
    throw new CommandError(`${file}: cannot be written (${code})`, EXIT.cannotCreate);
  }
}

type Step = readonly [text: string, command: string];

/** Commands for the current folder. */
function listNextSteps(context: CommandContext, answers: Answers, file: string): readonly Step[] {
  const folder = dirname(resolve(context.cwd, file));
  const locate = (name: string): string => quoteForShell(relative(context.cwd, resolve(folder, name)) || '.');
  const config = quoteForShell(file);
  const program = context.env['npm_command'] === 'exec' ? 'npx gatehouse' : 'gatehouse';
  const { origin, hostname } = new URL(answers['public-url']);
  const isCertificate = answers['sign-in'] === 'certificate';
  // Another file of `gatehouse dev-ca` may have the name of the program.
  const certificate = isReservedName(answers.client) ? `${answers.client.slice(0, 57)}-client` : answers.client;
  const hosts = isLocal(answers) ? '' : ` --host ${hostname.replace(/^\[|\]$/g, '')}`;
  const loginOptions = [
    `--url ${quoteForShell(origin)} --client ${quoteForShell(answers.client)} --scope ${getScope(answers).split(',')[0]}`,
  ];
  const steps: Step[] = [];
  if (answers.tls === 'here') {
    loginOptions.push(`--cacert ${locate('pki/ca.pem')}`);
    if (!existsSync(resolve(folder, 'pki')))
      steps.push([
        'Create certificates for development in this folder, or put your own there',
        `${program} dev-ca${hosts}${isCertificate ? ` --client ${quoteForShell(certificate)}` : ''} ${locate('pki')}`,
      ]);
  }
  if (isCertificate)
    loginOptions.push(`--cert ${locate(`pki/${certificate}.pem`)} --key ${locate(`pki/${certificate}-key.pem`)}`);
  if (answers.store === 'redis')
    steps.push([
      'Create the keys once, and copy the file to every replica',
      `${program} keys new ${locate('data/keys.json')}`,
    ]);
  return [
    ...steps,
    ['Check it', `${program} check --config ${config}`],
    ['Run it', `${program} serve --config ${config}`],
    ['In another terminal, sign in as a client', `${program} login ${loginOptions.join(' ')}`],
  ];
}
