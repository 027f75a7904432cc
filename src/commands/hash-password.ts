import { createInterface } from 'node:readline';
import { Writable } from 'node:stream';
import { hashPassword } from '../identity/password-hasher.ts';
import { readAtMost } from '../lib/http-client.ts';
import { type Command, type CommandContext, UsageError, writeJson } from './command.ts';

const MAX_BYTES = 1_024;

export const command: Command = {
  name: 'hash-password',
  summary: 'reads a password from standard input and prints its hash for the configuration',
  usage: ['gatehouse hash-password', 'gatehouse hash-password < password.txt'],
  options: {},
  notes: ['On a terminal, the password is not echoed. A trailing line break from a pipe or file is ignored.'],
  async run(context) {
    const password = context.stdin.isTTY ? await readFromTerminal(context) : await readFromPipe(context);
    if (password === '') throw new UsageError('gatehouse hash-password: the password is empty');
    const passwordHash = await hashPassword(password);
    if (context.json) writeJson(context, { passwordHash });
    else context.stdout(`${passwordHash}\n`);
  },
};

const createTooLongError = (): UsageError =>
  new UsageError(`gatehouse hash-password: the password is longer than ${MAX_BYTES} bytes`);

async function readFromPipe({ stdin }: CommandContext): Promise<string> {
  const bytes = await readAtMost(stdin, MAX_BYTES + 2);
  if (bytes === undefined) throw createTooLongError();
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: false }).decode(bytes);
  } catch {
    throw new UsageError('gatehouse hash-password: the password is not UTF-8 text');
  }
  const password = text.replace(/\r?\n$/, '');
  if (/[\r\n\0]/.test(password)) throw new UsageError('gatehouse hash-password: the password must be a single line');
  if (Buffer.byteLength(password) > MAX_BYTES) throw createTooLongError();
  return password;
}

/** Nothing is echoed. Ctrl-C and Ctrl-D cancel. */
async function readFromTerminal({ stdin, stderr }: CommandContext): Promise<string> {
  stderr('Password: ');
  const output = new Writable({ write: (_chunk, _encoding, done) => done() });
  const lines = createInterface({ input: stdin, output, terminal: true, historySize: 0 });
  try {
    const password = await new Promise<string>((resolve, reject) => {
      lines.once('line', resolve).once('close', () => reject(new UsageError('gatehouse hash-password: cancelled')));
    });
    if (Buffer.byteLength(password) > MAX_BYTES) throw createTooLongError();
    return password;
  } finally {
    lines.close();
    stderr('\n');
  }
}
