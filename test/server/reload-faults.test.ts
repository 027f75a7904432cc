import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import type { Settings } from '../../src/config/schema.ts';
import { FileWatch } from '../../src/lib/watch-files.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { Fault } from '../../src/ports/fault.ts';
import type { Gateway } from '../../src/server/gateway.ts';
import { Reloader } from '../../src/server/reloader.ts';
import { startGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';

test('an exception while the configuration is read is logged, and the next reload works', async () => {
  const gateway = await startGateway();
  onTestFinished(() => gateway.close());
  const settings = gateway.server.settings();
  const lines: string[] = [];
  let isBroken = true;
  const reloader = new Reloader({
    load() {
      if (isBroken) throw new TypeError('Invalid URL');
      return { ok: true, settings, files: [], warnings: [] } as never;
    },
    gateway: Promise.resolve(gateway.server),
    settings,
    files: [],
    log: createLogger({ level: 'info', format: 'json', write: (line) => lines.push(line) }),
  });
  onTestFinished(() => reloader.close());
  const events = (): unknown[] => lines.map((line) => (JSON.parse(line) as { event: string }).event);
  await reloader.reload('SIGHUP');
  expect(events()).toEqual(['reload_failed']);
  expect(gateway.server.getStatus().rejectedReload?.problems).toEqual([
    'internal error: the log event reload_failed has the details',
  ]);
  isBroken = false;
  await reloader.reload('SIGHUP');
  expect(events()).toEqual(['reload_failed', 'reloaded']);
  expect(gateway.server.getStatus().rejectedReload).toBeUndefined();
  expect((await gateway.grant()).token_type).toBe('Bearer');
});

test('a reload that fails because of the store is retried until it succeeds', async () => {
  const gateway = await startGateway();
  onTestFinished(() => gateway.close());
  const settings = gateway.server.settings();
  const lines: string[] = [];
  const rejections: string[] = [];
  let failures = 2;
  const reloader = new Reloader({
    load: () => ({ ok: true, settings, files: [], warnings: [] }) as never,
    gateway: Promise.resolve({
      reload(next) {
        failures -= 1;
        return failures >= 0
          ? Promise.reject(new Fault('store_unavailable', 'Redis: no response'))
          : gateway.server.reload(next);
      },
      rejectReload: (problems) => rejections.push(...problems),
    }),
    settings,
    files: [],
    log: createLogger({ level: 'info', format: 'json', write: (line) => lines.push(line) }),
  });
  onTestFinished(() => reloader.close());
  await reloader.reload('SIGHUP');
  const logged = await until(
    'the reload has succeeded',
    () => lines.length >= 3 && lines.map((line) => JSON.parse(line)),
  );
  expect(logged).toMatchObject([
    { event: 'reload_failed', cause: 'SIGHUP', retry_in_seconds: 1 },
    { event: 'reload_failed', cause: 'an earlier reload failed', retry_in_seconds: 2 },
    { event: 'reloaded', cause: 'an earlier reload failed' },
  ]);
  expect(rejections).toEqual(Array(2).fill('Redis: no response; the reload is tried again'));
});

test('a reloader that is closed while a reload fails does not retry', async () => {
  const gateway = await startGateway();
  onTestFinished(() => gateway.close());
  const settings = gateway.server.settings();
  const lines: string[] = [];
  const failing = Promise.withResolvers<never>();
  const reloader = new Reloader({
    load: () => ({ ok: true, settings, files: [], warnings: [] }) as never,
    gateway: Promise.resolve({ reload: () => failing.promise, rejectReload() {} }),
    settings,
    files: [],
    log: createLogger({ level: 'info', format: 'json', write: (line) => lines.push(line) }),
  });
  const reloading = reloader.reload('SIGHUP');
  reloader.close();
  failing.reject(new Fault('store_unavailable', 'Redis: no response'));
  await reloading;
  expect(lines.map((line) => JSON.parse(line))).toMatchObject([{ event: 'reload_failed', cause: 'SIGHUP' }]);
  expect(lines[0]).not.toContain('retry_in_seconds');
});

test('a first start, which creates the key file, does not reload', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-reload-'));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const gateway = await startGateway();
  onTestFinished(() => gateway.close());
  const [keyFile, config] = [join(folder, 'keys.json'), join(folder, 'gatehouse.yaml')];
  writeFileSync(config, 'one');
  const current = gateway.server.settings();
  const settings: Settings = { ...current, keys: { ...current.keys, file: keyFile } };
  const lines: string[] = [];
  const seen: string[] = [];
  const opening = Promise.withResolvers<Pick<Gateway, 'reload' | 'rejectReload'>>();
  const reloader = new Reloader({
    load: () => ({ ok: true, settings, files: [config, keyFile], warnings: [] }) as never,
    gateway: opening.promise,
    settings,
    files: [config, keyFile],
    log: createLogger({ level: 'info', format: 'json', write: (line) => lines.push(line) }),
  });
  onTestFinished(() => reloader.close());
  // Created later than that of the reloader, and with the same times: it reports what the other has reported.
  const watch = new FileWatch([keyFile], (changed) => void seen.push(...changed));
  onTestFinished(() => watch.close());
  writeFileSync(keyFile, 'made by the gateway');
  opening.resolve({ reload: async () => [], rejectReload() {} });
  await until('the key file is noticed', () => seen.length > 0);
  expect(lines).toEqual([]);
  writeFileSync(config, 'two');
  await until('the configuration is reloaded', () => lines.length > 0);
  expect(lines).toHaveLength(1);
  writeFileSync(keyFile, 'rotated');
  await until('the rotation is noticed', () => lines.length > 1);
});
