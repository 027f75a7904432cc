import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { AdminApiDeps } from '../../src/admin/grants-api.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { NO_RECENT_EVENTS } from '../../src/observability/recent-events.ts';
import { AdminEndpoint } from '../../src/server/admin-endpoint.ts';
import { sendRequest } from '../support/https-client.ts';
import { baseSettings, writeAndLoadSettings } from '../support/test-gateway.ts';

const TOKEN = 'ght_the-token-of-an-operator';
let folder: string;
let admin: AdminEndpoint;
const lines: string[] = [];

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'gatehouse-admin-'));
  writeFileSync(join(folder, 'token'), `${TOKEN}\n`, { mode: 0o600 });
  const settings = writeAndLoadSettings(folder, {
    ...baseSettings(1),
    admin: { port: 0, tokenFile: 'token' },
  });
  const log = createLogger({ level: 'info', format: 'json', write: (line) => void lines.push(line) });
  const broken = {
    log,
    store: {
      grants: {
        async read(id: string) {
          throw new TypeError(`this should never happen to ${id.slice(0, 3)}`);
        },
      },
    },
  } as unknown as AdminApiDeps;
  admin = new AdminEndpoint({
    settings,
    log,
    checks: [],
    getSnapshots: async () => {
      throw new RangeError('no figures');
    },
    getRecentSnapshots: async () => [],
    findRecentEvents: async () => NO_RECENT_EVENTS,
    findPendingRestart: () => [],
    now: () => Date.now() / 1_000,
  });
  admin.api = broken;
  await admin.open();
});
afterAll(async () => {
  await admin.close();
  rmSync(folder, { recursive: true });
});

const requestAdmin = (path: string) =>
  sendRequest({ port: admin.port ?? 0, path, plain: true, headers: { authorization: `Bearer ${TOKEN}` } });

test('an internal error of the admin API is logged with its stack, without the token and the request', async () => {
  const { status, text } = await requestAdmin('/admin/v1/grants/abcdef');
  expect([status, text]).toEqual([500, expect.not.stringContaining('never happen')]);
  const line = lines.find((entry) => entry.includes('admin_request_failed')) ?? '{}';
  expect(JSON.parse(line)).toMatchObject({
    level: 'error',
    method: 'GET',
    error: 'this should never happen to abc',
    stack: [expect.stringContaining('internal-errors.test.ts'), ...Array(4).fill(expect.any(String))],
  });
  expect(line).not.toContain('abcdef');
  expect(lines.join('')).not.toContain(TOKEN);
});

test('a failure to collect metrics is logged', async () => {
  expect((await requestAdmin('/metrics')).status).toBe(500);
  expect(JSON.parse(lines.find((line) => line.includes('metrics_failed')) ?? '{}')).toMatchObject({
    error: 'no figures',
  });
});
