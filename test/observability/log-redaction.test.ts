import { expect, test } from 'vitest';
import { createLogger, type LogFields } from '../../src/observability/logger.ts';

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
