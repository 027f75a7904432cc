import { randomBytes } from 'node:crypto';
import { hashClientSecret } from '../grants/client-authentication.ts';
import { readAtMost } from '../lib/http-client.ts';
import { type Command, type CommandContext, UsageError, writeJson } from './command.ts';

const MIN_LENGTH = 32;
const MAX_BYTES = 1_024;

export const command: Command = {
  name: 'hash-secret',
  summary: 'generates a client secret, or hashes one from standard input, for clientSecretHashes',
  usage: ['gatehouse hash-secret --generate', 'gatehouse hash-secret < secret.txt'],
  options: { generate: { help: 'generate a random secret and print it with its hash' } },
  notes: [
    `The hash is fast to compute, so the secret must be random and have at least ${MIN_LENGTH} characters.`,
    'Only the hash belongs in the configuration. The secret is printed once.',
  ],
  async run(context) {
    const generate = context.flag('generate');
    const secret = generate ? `ghc_${randomBytes(32).toString('base64url')}` : await readSecret(context);
    const clientSecretHash = hashClientSecret(secret);
    if (context.json) writeJson(context, { ...(generate && { clientSecret: secret }), clientSecretHash });
    else context.stdout(`${generate ? `${secret}\n` : ''}${clientSecretHash}\n`);
  },
};

async function readSecret({ stdin }: CommandContext): Promise<string> {
  if (stdin.isTTY) throw new UsageError('gatehouse hash-secret: use --generate, or pipe a secret to standard input');
  const bytes = await readAtMost(stdin, MAX_BYTES + 2);
  const secret = bytes?.toString('latin1').replace(/\r?\n$/, '') ?? '';
  if (bytes === undefined || !/^[\x21-\x7e]+$/.test(secret))
    throw new UsageError('gatehouse hash-secret: the secret must be one line of printable ASCII without spaces');
  if (secret.length < MIN_LENGTH || new Set(secret).size < MIN_LENGTH / 4)
    throw new UsageError(
      `gatehouse hash-secret: the secret must be random and have at least ${MIN_LENGTH} characters; use --generate`,
    );
  return secret;
}
