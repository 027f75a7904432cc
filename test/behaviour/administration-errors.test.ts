import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openAdminFor } from '../../src/gateway/doors.ts';
import { createLogger } from '../../src/observability/logger.ts';
import type { AdminListener } from '../../src/ops/admin.ts';
import type { AdministrationDeps } from '../../src/ops/administration.ts';
import { baseSettings, settingsIn } from '../support/house.ts';
import { exchange } from '../support/https-client.ts';

const TOKEN = 'ght_the-token-of-an-operator';
let folder: string;
let admin: AdminListener;
const lines: string[] = [];

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'gatehouse-admin-'));
  writeFileSync(join(folder, 'token'), `${TOKEN}\n`, { mode: 0o600 });
  const settings = settingsIn(folder, { ...baseSettings(1), admin: { port: 0, tokenFile: 'token' } });
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
  } as unknown as AdministrationDeps;
  admin = await openAdminFor(
    settings,
    () => undefined,
    () => false,
    [],
    async () => {
      throw new RangeError('no figures');
    },
    () => broken,
    log,
  );
});
afterAll(async () => {
  await admin.close();
  rmSync(folder, { recursive: true });
});

const ask = (path: string) =>
  exchange({ port: admin.port, path, plain: true, headers: { authorization: `Bearer ${TOKEN}` } });

test('an error of ours in the administration is in the log with its place, without the token and what was asked', async () => {
  const { status, text } = await ask('/admin/v1/grants/abcdef');
  expect([status, text]).toEqual([500, expect.not.stringContaining('never happen')]);
  const line = lines.find((one) => one.includes('administration_failed')) ?? '{}';
  expect(JSON.parse(line)).toMatchObject({
    level: 'error',
    method: 'GET',
    error: 'this should never happen to abc',
    stack: [expect.stringContaining('administration-errors.test.ts'), ...Array(4).fill(expect.any(String))],
  });
  expect(line).not.toContain('abcdef');
  expect(lines.join('')).not.toContain(TOKEN);
});

test('figures that cannot be gathered are told in the log too', async () => {
  expect((await ask('/metrics')).status).toBe(500);
  expect(JSON.parse(lines.find((one) => one.includes('metrics_failed')) ?? '{}')).toMatchObject({
    error: 'no figures',
  });
});
