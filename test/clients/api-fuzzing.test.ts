import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type House, openHouse } from '../support/house.ts';
import { pythonTools, runPython } from './python.ts';

/**
 * Schemathesis makes requests of our own OpenAPI document, right and wrong ones, and holds every answer against it:
 * no server error, no undocumented status, type, header or body.
 */
let house: House;
let bin: string;
beforeAll(async () => {
  bin = await pythonTools();
  house = await openHouse((settings) => ({
    ...settings,
    trustedProxies: ['127.0.0.1'],
    introspection: { requires: 'files:read', access: [{ groups: ['operators'] }] },
  }));
  await house.reload((settings) => ({ ...settings, publicUrl: `https://localhost:${house.port}` }));
  writeFileSync(join(house.folder, 'alice.pem'), house.people.alice.pem);
  writeFileSync(join(house.folder, 'alice-key.pem'), house.people.alice.keyPem, { mode: 0o600 });
}, 300_000);
afterAll(() => house.close());

/** Of each operation, and kind of data; `npm run fuzz:api` takes more. */
const EXAMPLES = Number(process.env['FUZZ_EXAMPLES'] ?? 6);
const LIMIT_MS = 120_000 + EXAMPLES * 10_000;
const CHECKS = [
  'not_a_server_error',
  'status_code_conformance',
  'content_type_conformance',
  'response_headers_conformance',
  'response_schema_conformance',
  'unsupported_method',
  'allow_header_conformance',
];

async function fuzz(checks: readonly string[], ...more: readonly string[]): Promise<void> {
  const base = `https://localhost:${house.port}`;
  house.forgetLog();
  const { code, output } = await runPython(
    join(bin, 'python'),
    [
      '-m',
      'schemathesis.cli',
      'run',
      `${base}/authsvc/openapi.json`,
      `--tls-verify=${join(house.folder, 'ca.pem')}`,
      `--checks=${checks.join(',')}`,
      `--max-examples=${EXAMPLES}`,
      '--phases=examples,coverage,fuzzing',
      '--seed=1',
      '--workers=1',
      '--request-timeout=20',
      '--continue-on-failure',
      '--no-color',
      '--warnings=off',
      ...more,
    ],
    { limit: LIMIT_MS },
  );
  expect(code, output).toBe(0);
  expect(house.log.filter(({ level }) => level === 'error')).toEqual([]);
  expect(house.log.length, 'it asked at all').toBeGreaterThan(500);
}

describe('0 server errors and 0 undocumented answers, from our own OpenAPI document', () => {
  test('as a stranger, who is let in nowhere', () => fuzz([...CHECKS, 'ignored_auth']), LIMIT_MS);

  test(
    'with a client certificate and an access token',
    async () => {
      const { access_token } = await house.grant();
      await fuzz(
        CHECKS,
        `--request-cert=${join(house.folder, 'alice.pem')}`,
        `--request-cert-key=${join(house.folder, 'alice-key.pem')}`,
        `--header=Authorization:Bearer ${access_token}`,
        '--exclude-operation-id=revoke',
      );
    },
    LIMIT_MS,
  );
});
