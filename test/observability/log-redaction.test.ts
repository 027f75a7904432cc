import { expect, test } from 'vitest';
import { redactStart, redactText } from '../../src/lib/redact.ts';
import { createLogger, type LogFields } from '../../src/observability/logger.ts';
import { randomFrom } from '../chaos/support.ts';

const writeLine = (fields: LogFields, always: LogFields = {}): string => {
  let written = '';
  const log = createLogger({
    level: 'info',
    format: 'json',
    write: (line) => {
      written += line;
    },
    now: () => 0,
    fields: always,
  });
  log.info('something', fields);
  return written;
};

const SECRETS: readonly (readonly [what: string, text: string, secret: string])[] = [
  ['a JWT', 'got eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhIn0.c2ln here', 'eyJzdWIiOiJhIn0'],
  ['a refresh token', 'token ghr_mAbc.grant.1.seal refused', 'grant.1.seal'],
  ['a device code', 'ghd_Zm9vYmFy', 'Zm9vYmFy'],
  ['a sealed cookie', 'x ghs_kid.body.mac', 'body.mac'],
  ['a parameter', 'GET /x?access_token=hidden&y=1', 'hidden'],
  ['a password in a form', 'user=alice&password=hidden', 'hidden'],
  ['a bearer header', 'bearer hidden-thing', 'hidden-thing'],
  ['a basic header', 'BASIC aGlkZGVu', 'aGlkZGVu'],
  ['a private key', '-----BEGIN PRIVATE KEY-----\nhidden\n-----END PRIVATE KEY-----', 'hidden'],
  ['a password in a URL', 'cannot reach redis://user:hidden@db:6379', 'hidden'],
];

for (const [what, text, secret] of SECRETS)
  test(`L01 ${what} inside a text is not logged`, () => {
    expect(text).toContain(secret);
    expect(writeLine({ error: text })).not.toContain(secret);
    expect(writeLine({ problems: ['fine', text] })).not.toContain(secret);
  });

test('L01 the value of a field with the name of a secret is never logged', () => {
  for (const name of ['password', 'refresh_token', 'Authorization', 'cookie', 'token'])
    expect(writeLine({ [name]: 'plain words' })).toContain('"[redacted]"');
});

test('an id that resembles the start of a JWT is logged; a JWT in its place is not', () => {
  for (const name of ['request_id', 'requestId', 'request', 'grant'])
    expect(writeLine({ [name]: 'lGXhPeyJtv3VhG95' })).toContain('"lGXhPeyJtv3VhG95"');
  expect(writeLine({ path: '/lGXhPeyJtv3VhG95' })).not.toContain('tv3VhG95');
  expect(writeLine({ request_id: 'eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhIn0.c2ln' })).not.toContain('c2ln');
});

test('a line is one JSON object: time, level, event, common fields, its own fields; undefined fields are omitted', () => {
  const line = writeLine({ path: '/files/1', count: 2, gone: undefined, names: ['a'] }, { worker: 7 });
  expect(line).toBe(
    '{"time":"1970-01-01T00:00:00.000Z","level":"info","event":"something","worker":7,"path":"/files/1","count":2,"names":["a"]}\n',
  );
});

test('L01 a secret at the end of a long text is not logged in part, even if redaction has shortened the text', () => {
  const jwt = `eyJ${'a'.repeat(400)}.b.c`;
  const opaque = `${'S'.repeat(62)}==`;
  for (let shift = 0; shift <= 600; shift += 7) {
    const text = `/${jwt}/${'x'.repeat(shift)}/${opaque}/${'y'.repeat(2_000)}`;
    expect(redactStart(text, 512), String(shift)).not.toMatch(/S{8}/);
  }
  const url = `/${jwt}/redis://user:${'S'.repeat(1_000)}@db/`;
  expect(redactStart(url, 512)).not.toMatch(/S{8}/);
});

test('the beginning of a long text without secrets is logged up to the limit', () => {
  const text = 'abc/'.repeat(1_000);
  expect(redactStart(text, 512)).toBe(text.slice(0, 512));
  expect(redactStart('short', 512)).toBe('short');
});

test.each(['json', 'text'] as const)('L03 characters that change the direction of text are escaped (%s)', (format) => {
  let written = '';
  const log = createLogger({ level: 'info', format, write: (line) => (written += line) });
  const characters = '\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c';
  log.info('something', { path: `/a${characters}b` });
  for (const character of characters) expect(written).not.toContain(character);
  expect(written).toContain(String.raw`/a\u202a\u202b`);
});

test('opaque tokens are found exactly where a plain search from each position finds them', () => {
  const random = randomFrom(1);
  const pick = (count: number): number => Math.floor(random() * count);
  const parts = ['a', '+', '/', '%2b', '%2F', '%', '=', '==', '%3D%3d', '%3d', '-', '2b', 'B'.repeat(61)];
  let redacted = 0;
  for (let round = 0; round < 5_000; round += 1) {
    const text = Array.from({ length: 1 + pick(12) }, () =>
      (parts[pick(parts.length)] ?? '').repeat(pick(3) === 0 ? 20 : 1),
    ).join('');
    const expected = text.replaceAll(/(?:[A-Za-z0-9+/]|%2[bf]){62}(?:==|%3d%3d)/gi, '[redacted-token]');
    if (expected !== text) redacted += 1;
    expect(redactText(text)).toBe(expected);
  }
  expect(redacted).toBeGreaterThan(100);
});
