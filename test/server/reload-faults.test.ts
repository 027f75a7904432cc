import { expect, onTestFinished, test } from 'vitest';
import { createLogger } from '../../src/observability/logger.ts';
import { createReloader } from '../../src/server/reloader.ts';
import { startGateway } from '../support/test-gateway.ts';

test('a fault while the configuration is read is logged, and the next reload works', async () => {
  const gateway = await startGateway();
  onTestFinished(() => gateway.close());
  const settings = gateway.server.settings();
  const lines: string[] = [];
  const refused: string[] = [];
  let isBroken = true;
  const reloader = createReloader({
    load() {
      if (isBroken) throw new TypeError('Invalid URL');
      return { ok: true, settings, files: [], warnings: [], deprecations: [] } as never;
    },
    gateway: Promise.resolve(gateway.server),
    settings,
    files: [],
    log: createLogger({ level: 'info', format: 'json', write: (line) => lines.push(line) }),
    onRejected: () => refused.push('refused'),
  });
  onTestFinished(() => reloader.close());
  const events = (): unknown[] => lines.map((line) => (JSON.parse(line) as { event: string }).event);
  await reloader.reload('SIGHUP');
  expect([events(), refused]).toEqual([['reload_failed'], ['refused']]);
  isBroken = false;
  await reloader.reload('SIGHUP');
  expect(events()).toEqual(['reload_failed', 'reloaded']);
  expect((await gateway.grant()).token_type).toBe('Bearer');
});
