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

/** In raw mode, so that nothing is echoed; Ctrl-C and Ctrl-D cancel. */
function readFromTerminal({ stdin, stderr }: CommandContext): Promise<string> {
  return new Promise((resolve, reject) => {
    let typed: string[] = [];
    const end = (): void => {
      stdin.off('data', onData);
      stdin.setRawMode?.(false);
      stdin.pause();
      stderr('\n');
    };
    const onData = (data: Buffer | string): void => {
      for (const key of data.toString()) {
        if (key === '\r' || key === '\n') {
          end();
          const password = typed.join('');
          return Buffer.byteLength(password) > MAX_BYTES ? reject(createTooLongError()) : resolve(password);
        }
        if (key === '\u0003' || key === '\u0004') {
          end();
          return reject(new UsageError('gatehouse hash-password: cancelled'));
        }
        if (key === '\u007f' || key === '\b') typed = typed.slice(0, -1);
        else if (key === '\u0015') typed = [];
        else if (key >= ' ' && typed.length <= MAX_BYTES) typed.push(key);
      }
    };
    stderr('Password: ');
    stdin.setRawMode?.(true);
    stdin.on('data', onData);
    stdin.resume();
  });
}
