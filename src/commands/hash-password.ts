import { type Command, type Context, EXIT, UsageError, writeJson } from './command.ts';

const MOST_BYTES = 1_024;

export const command: Command = {
  name: 'hash-password',
  summary: 'reads a password from standard input and prints its hash for the configuration',
  usage: ['gatehouse hash-password', 'gatehouse hash-password < password.txt'],
  options: {},
  notes: [
    'On a terminal the password is not shown. From a pipe or file, one line end at its end does not count.',
  ],
  async run(context) {
    const password = context.stdin.isTTY ? await fromTerminal(context) : await fromPipe(context);
    if (password === '') throw new UsageError('gatehouse hash-password: the password is empty');
    const { hashPassword } = await import('../identity/passwords.ts');
    const passwordHash = await hashPassword(password);
    if (context.json) writeJson(context, { passwordHash });
    else context.stdout(`${passwordHash}\n`);
    return EXIT.ok;
  },
};

const tooLong = (): UsageError =>
  new UsageError(`gatehouse hash-password: a password has at most ${MOST_BYTES} bytes`);

async function fromPipe({ stdin }: Context): Promise<string> {
  const parts: Buffer[] = [];
  let length = 0;
  for await (const part of stdin) {
    const bytes = Buffer.from(part as Buffer);
    length += bytes.length;
    if (length > MOST_BYTES + 2) throw tooLong();
    parts.push(bytes);
  }
  return asPassword(Buffer.concat(parts));
}

function asPassword(bytes: Buffer): string {
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: false }).decode(bytes);
  } catch {
    throw new UsageError('gatehouse hash-password: the password is not UTF-8 text');
  }
  const password = text.replace(/\r?\n$/, '');
  if (/[\r\n\0]/.test(password)) throw new UsageError('gatehouse hash-password: a password is one line');
  if (Buffer.byteLength(password) > MOST_BYTES) throw tooLong();
  return password;
}

/** Key by key, so that nothing is shown; Ctrl-C and Ctrl-D leave. */
function fromTerminal({ stdin, stderr }: Context): Promise<string> {
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
          return Buffer.byteLength(password) > MOST_BYTES ? reject(tooLong()) : resolve(password);
        }
        if (key === '\u0003' || key === '\u0004') {
          end();
          return reject(new UsageError('gatehouse hash-password: left without a password'));
        }
        if (key === '\u007f' || key === '\b') typed = typed.slice(0, -1);
        else if (key === '\u0015') typed = [];
        else if (key >= ' ' && typed.length <= MOST_BYTES) typed.push(key);
      }
    };
    stderr('Password: ');
    stdin.setRawMode?.(true);
    stdin.on('data', onData);
    stdin.resume();
  });
}
