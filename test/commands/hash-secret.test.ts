import { createHash } from 'node:crypto';
import { expect, test } from 'vitest';
import { runCommand } from '../support/command-in-process.ts';

const hash = (secret: string): string => `sha256:${createHash('sha256').update(secret).digest('base64url')}`;

test('hash-secret --generate prints a new secret each time, and its hash', async () => {
  const [first, second] = [
    await runCommand(['hash-secret', '--generate']),
    await runCommand(['hash-secret', '--generate', '--output', 'json']),
  ];
  const [secret = '', printedHash] = first.stdout.trimEnd().split('\n');
  expect(secret).toMatch(/^ghc_[A-Za-z0-9_-]{43}$/);
  expect(printedHash).toBe(hash(secret));
  const json = JSON.parse(second.stdout) as Readonly<Record<string, string>>;
  expect(json['clientSecretHash']).toBe(hash(String(json['clientSecret'])));
  expect(json['clientSecret']).not.toBe(secret);
});

test('hash-secret hashes a secret from standard input, and refuses one that can be guessed', async () => {
  const secret = 'kR4vQ9zX2mB7nL5pT8wY3cF6hJ1dS0gA';
  expect(await runCommand(['hash-secret'], { input: `${secret}\n` })).toMatchObject({
    code: 0,
    stdout: `${hash(secret)}\n`,
  });
  for (const input of ['', 'hunter2', 'a'.repeat(64), `${secret} ${secret}`, `${secret}\n${secret}`]) {
    const refused = await runCommand(['hash-secret'], { input });
    expect(refused, input).toMatchObject({ code: 64, stdout: '' });
    if (input !== '') expect(refused.stderr).not.toContain(input);
  }
});
