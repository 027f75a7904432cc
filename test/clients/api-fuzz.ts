import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { APP } from '../support/code-client.ts';
import { createForeignKey, formatKeySet } from '../support/foreign-issuer.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';
import { installPythonTools, runPython } from './python.ts';

const CHECKS = [
  'not_a_server_error',
  'status_code_conformance',
  'content_type_conformance',
  'response_headers_conformance',
  'response_schema_conformance',
  'unsupported_method',
  'allow_header_conformance',
];

type Caller = 'anonymous' | 'authenticated';

/**
 * Schemathesis generates valid and invalid requests from gatehouse's OpenAPI document and checks every response against it:
 * no server error, no undocumented status, media type, header or body.
 */
export const fuzzApi = (examples: number, ...callers: readonly Caller[]): object =>
  describe('no server errors and no undocumented responses, according to the OpenAPI document', () => {
    const limit = 120_000 + examples * 10_000;
    /** Schemathesis writes a database of examples to its working directory. */
    let folder: string;
    let gateway: TestGateway;
    let python: string;
    beforeAll(async () => {
      folder = mkdtempSync(join(tmpdir(), 'gatehouse-fuzz-'));
      python = join(await installPythonTools(), 'python');
      const key = await createForeignKey();
      // Every endpoint is available.
      gateway = await startGateway(
        (settings) => ({
          ...settings,
          trustedProxies: ['127.0.0.1'],
          integrations: [...(settings.integrations ?? []), APP],
          introspection: { requires: 'files:read', access: [{ groups: ['operators'] }] },
          trustedIssuers: {
            corp: {
              issuer: 'https://corp.example.test',
              audience: 'files-api',
              jwksFile: 'corp.json',
              logout: { audience: 'gatehouse' },
            },
          },
        }),
        (to) => writeFileSync(join(to, 'corp.json'), formatKeySet(key)),
      );
      await gateway.reload((settings) => ({ ...settings, publicUrl: `https://localhost:${gateway.port}` }));
      writeFileSync(join(folder, 'alice.pem'), gateway.users.alice.pem);
      writeFileSync(join(folder, 'alice-key.pem'), gateway.users.alice.keyPem, { mode: 0o600 });
    }, 300_000);
    afterAll(async () => {
      await gateway?.close();
      rmSync(folder, { recursive: true, force: true });
    });

    async function fuzz(checks: readonly string[], ...more: readonly string[]): Promise<void> {
      gateway.clearLog();
      const { code, output } = await runPython(
        'env',
        [
          '-C',
          folder,
          python,
          '-m',
          'schemathesis.cli',
          'run',
          `https://localhost:${gateway.port}/authsvc/openapi.json`,
          `--tls-verify=${join(gateway.folder, 'ca.pem')}`,
          `--checks=${checks.join(',')}`,
          `--max-examples=${examples}`,
          '--phases=examples,coverage,fuzzing',
          '--seed=1',
          '--workers=1',
          '--request-timeout=20',
          '--continue-on-failure',
          '--no-color',
          '--warnings=off',
          ...more,
        ],
        { limit },
      );
      expect(code, output).toBe(0);
      expect(gateway.log.filter(({ level }) => level === 'error')).toEqual([]);
      expect(gateway.log.length, 'requests were made').toBeGreaterThan(500);
    }

    if (callers.includes('anonymous'))
      test('without credentials, no token is issued', () => fuzz([...CHECKS, 'ignored_auth']), limit);

    if (callers.includes('authenticated'))
      test(
        'with a client certificate and an access token',
        async () => {
          const { access_token } = await gateway.grant();
          await fuzz(
            CHECKS,
            '--request-cert=alice.pem',
            '--request-cert-key=alice-key.pem',
            `--header=Authorization:Bearer ${access_token}`,
            '--exclude-operation-id=revoke',
          );
        },
        limit,
      );
  });
