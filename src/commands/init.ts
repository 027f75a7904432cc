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
import { type Answers, isLoopbackUrl, QUESTIONS, type Question } from './init/answers.ts';
import { getRedirectUri, getScope, MCP_PATH, renderConfiguration } from './init/configuration.ts';
import { isReservedName } from './pki/private-files.ts';
import { quoteForShell } from './quote.ts';

/** Without a terminal, these have no default unless --yes is given. */
const REQUIRED: readonly string[] = ['public-url', 'upstream'];

export const command: Command = {
  name: 'init',
  summary: 'writes a configuration to start from; asks for what it needs',
  usage: ['gatehouse init [FILE]', 'gatehouse init --public-url URL --upstream URL [options] [FILE]'],
  options: {
    ...Object.fromEntries(QUESTIONS.map((question) => [question.option, createOption(question)])),
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
    requireAbsent(path, file);
    const answers = await collectAnswers(context);
    const hasLocalUser = answers['sign-in'] === 'password';
    const password = hasLocalUser ? generatePassword() : undefined;
    const text = renderConfiguration(answers, password === undefined ? undefined : await hashPassword(password));
    requireValid(context, path, text);
    writeConfiguration(path, file, text);
    const next = listNextSteps(context, answers, file);
    if (context.json)
      writeJson(context, {
        file: path,
        ...(password !== undefined && { user: answers['user'], password }),
        ...(answers['sign-in'] === 'openid' && { redirectUri: getRedirectUri(answers) }),
        next: next.map(({ command: nextCommand }) => nextCommand),
      });
    else context.stdout(formatResult(file, answers, password, next));
  },
};

function createOption({ choices = {}, text, fallback, when, value, help }: Question): Option {
  const details = [
    ...Object.entries(choices).map(([name, meaning]) => `${name}: ${meaning}`),
    ...(when === undefined ? [] : [`with ${formatCondition(when)}`]),
    ...(typeof fallback === 'string' && fallback !== '-' ? [`default: ${fallback}`] : []),
    ...(help === undefined ? [] : [help]),
  ].join('; ');
  const label = text.replace(' (- for none)', '');
  return {
    value: value ?? Object.keys(choices).join('|'),
    help: `${label.charAt(0).toLowerCase()}${label.slice(1)}${details === '' ? '' : ` (${details})`}`,
  };
}

function formatCondition([option, ...answers]: NonNullable<Question['when']>): string {
  return `--${option} ${answers.join(' or ')}`;
}

function requireAbsent(path: string, file: string): void {
  if (existsSync(path))
    throw new CommandError(
      `${file} exists already, and nothing is overwritten; name another file: gatehouse init FILE`,
      EXIT.configuration,
    );
}

async function collectAnswers(context: CommandContext): Promise<Answers> {
  const isInteractive = context.stdin.isTTY === true && !context.flag('yes');
  const ask = isInteractive ? openPrompt(context) : undefined;
  const answers: Record<string, string> = {};
  try {
    for (const question of QUESTIONS) {
      const { option, when, isOptionOnly = false } = question;
      const given = context.option(option);
      if (when !== undefined && !when.slice(1).includes(answers[when[0]] ?? '')) {
        if (given !== undefined) throw new UsageError(`gatehouse init: --${option} needs ${formatCondition(when)}`);
        continue;
      }
      const answer =
        given ?? (ask && !isOptionOnly ? await ask.answer(question, answers) : getDefault(context, question, answers));
      const problem = findProblem(question, answer, answers);
      if (problem !== undefined) throw new UsageError(`gatehouse init: --${option} ${problem}`);
      answers[option] = answer;
    }
  } finally {
    ask?.close();
  }
  return answers;
}

const getFallback = ({ fallback }: Question, answers: Answers): string | undefined =>
  typeof fallback === 'function' ? fallback(answers) : fallback;

function getDefault(context: CommandContext, question: Question, answers: Answers): string {
  const fallback = getFallback(question, answers);
  const { option } = question;
  if (fallback !== undefined && (context.flag('yes') || !REQUIRED.includes(option))) return fallback;
  const missing = REQUIRED.filter((name) => context.option(name) === undefined);
  throw new UsageError(
    REQUIRED.includes(option)
      ? `gatehouse init: standard input is not a terminal, so ${missing.map((name) => `--${name}`).join(' and ')} must be given, or --yes for the defaults`
      : `gatehouse init: --sign-in ${answers['sign-in']} needs --${option}`,
  );
}

function findProblem(question: Question, answer: string, answers: Answers): string | undefined {
  const { option, choices, validate } = question;
  if (choices !== undefined && !Object.hasOwn(choices, answer)) return `must be ${Object.keys(choices).join(' or ')}`;
  if (option === 'sign-in' && answer === 'certificate' && answers['tls'] !== 'here')
    return 'certificate needs --tls here: the proxy would have to forward the certificates (docs/certificates.md)';
  if (option === 'user' && answers['sign-in'] === 'openid' && !answer.includes('@'))
    return 'must be the email address of the user at the OpenID provider';
  return validate?.(answer);
}

interface Prompt {
  readonly answer: (question: Question, answers: Answers) => Promise<string>;
  readonly close: () => void;
}

/** Asks on standard error, so that standard output has the result only. */
function openPrompt({ stdin, stderr }: CommandContext): Prompt {
  const lines = createInterface({ input: stdin, terminal: false });
  const iterator = lines[Symbol.asyncIterator]();
  stderr('Enter accepts the value in brackets; Ctrl-C cancels.\n');
  const answer: Prompt['answer'] = async (question, answers) => {
    const fallback = getFallback(question, answers);
    const choices = Object.entries(question.choices ?? {});
    stderr(`\n${question.text}${choices.length === 0 ? '' : ':'}\n`);
    for (const [name, meaning] of choices) stderr(`  ${name.padEnd(11)} ${meaning}\n`);
    for (;;) {
      stderr(fallback === undefined ? '> ' : `[${fallback}] > `);
      const { done, value } = await iterator.next();
      if (done === true) throw new CommandError('cancelled; nothing was written', EXIT.usage);
      const text = value.trim() || fallback;
      const problem = text === undefined ? 'needs an answer' : findProblem(question, text, answers);
      if (text !== undefined && problem === undefined) return text;
      stderr(`This ${problem}.\n`);
    }
  };
  return { answer, close: () => lines.close() };
}

/** Answers may contradict each other in ways that only the schema knows, and files with secrets must exist. */
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
    throw new CommandError(`${file}: cannot be written (${code})`, EXIT.configuration);
  }
}

interface Step {
  readonly text: string;
  readonly command: string;
}

/** The systemd unit runs as the user `gatehouse`, which cannot read a file of root with mode 0600. */
export const listPermissionSteps = (path: string, userId = process.geteuid?.()): readonly Step[] =>
  userId === 0 && path.startsWith('/etc/')
    ? [
        {
          text: 'For the systemd service, make it readable by the group gatehouse, and likewise the certificates and keys that it names',
          command: `chgrp gatehouse ${quoteForShell(path)} && chmod 0640 ${quoteForShell(path)}`,
        },
      ]
    : [];

/** Commands for the current folder. */
function listNextSteps(context: CommandContext, answers: Answers, file: string): readonly Step[] {
  const folder = dirname(resolve(context.cwd, file));
  const locate = (name: string): string => quoteForShell(relative(context.cwd, resolve(folder, name)) || '.');
  const config = quoteForShell(file);
  const program = context.env['npm_command'] === 'exec' ? 'npx gatehouse' : 'gatehouse';
  const url = new URL(answers['public-url'] ?? '').origin;
  const isCertificate = answers['sign-in'] === 'certificate';
  const pki = findDevelopmentFolder(answers);
  const exists = (name: string | undefined): boolean => name !== undefined && existsSync(resolve(folder, name));
  const needsPki =
    pki !== undefined && !['tls-certificate', 'tls-key', 'client-ca'].some((option) => exists(answers[option]));
  const certificateName = getCertificateName(answers);
  const hasFile = (name: string): boolean => pki !== undefined && (needsPki || exists(`${pki}/${name}`));
  const loginOptions = [
    ['--url', quoteForShell(url)],
    ['--client', quoteForShell(answers['client'] ?? '')],
    ['--scope', getScope(answers).split(',')[0]],
    ...(hasFile('ca.pem') ? [['--cacert', locate(`${pki}/ca.pem`)]] : []),
    ...(isCertificate && hasFile(`${certificateName}.pem`)
      ? [
          ['--cert', locate(`${pki}/${certificateName}.pem`)],
          ['--key', locate(`${pki}/${certificateName}-key.pem`)],
        ]
      : isCertificate
        ? [['--cert FILE --key FILE']]
        : []),
  ].flat();
  return [
    ...(needsPki
      ? [
          {
            text: 'Create certificates for development in this folder, or put your own there',
            command: [
              `${program} dev-ca`,
              ...(isLoopbackUrl(url) ? [] : ['--host', new URL(url).hostname.replace(/^\[|\]$/g, '')]),
              ...(isCertificate ? ['--client', quoteForShell(certificateName)] : []),
              locate(pki),
            ].join(' '),
          },
        ]
      : []),
    ...(answers['store'] === 'redis'
      ? [
          {
            text: 'Create the keys once, and copy the file to every replica',
            command: `${program} keys new ${locate('data/keys.json')}`,
          },
        ]
      : []),
    ...listPermissionSteps(resolve(context.cwd, file)),
    { text: 'Check it', command: `${program} check --config ${config}` },
    { text: 'Run it', command: `${program} serve --config ${config}` },
    {
      text: 'In another terminal, sign in as a client',
      command: `${program} login ${loginOptions.join(' ')}`,
    },
  ];
}

/** The client certificate for `gatehouse dev-ca`: named after the program, unless another file has that name. */
const getCertificateName = ({ client = '' }: Answers): string =>
  isReservedName(client) ? `${client.slice(0, 57)}-client` : client;

/** The folder for `gatehouse dev-ca`: undefined unless all files are where it would create them. */
function findDevelopmentFolder(answers: Answers): string | undefined {
  const certificate = answers['tls-certificate'];
  if (certificate === undefined || !certificate.endsWith('/server.pem')) return undefined;
  const folder = dirname(certificate);
  const isIn = (option: string, name: string): boolean =>
    answers[option] === undefined || answers[option] === `${folder}/${name}`;
  return isIn('tls-key', 'server-key.pem') && isIn('client-ca', 'ca.pem') ? folder : undefined;
}

function formatResult(file: string, answers: Answers, password: string | undefined, next: readonly Step[]): string {
  return [
    `Wrote ${file}.`,
    ...(password === undefined ? [] : [`The password for ${answers['user']} is ${password}. It is not shown again.`]),
    ...(answers['sign-in'] === 'openid'
      ? [`Register this redirect URI at the OpenID provider: ${getRedirectUri(answers)}`]
      : []),
    '',
    'Next:',
    ...next.flatMap(({ text, command: nextCommand }, index) => [`${index + 1}. ${text}:`, `     ${nextCommand}`]),
    ...(answers['client-type'] === 'mcp'
      ? [`Agents connect to ${new URL(MCP_PATH, answers['public-url']).href} with the client ID ${answers['client']}.`]
      : []),
    '',
  ].join('\n');
}
