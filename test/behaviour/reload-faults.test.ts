import { expect, onTestFinished, test } from 'vitest';
import { createReloader } from '../../src/gateway/reloader.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { openHouse } from '../support/house.ts';

test('a fault while the configuration is read is logged, and the next reload works', async () => {
  const house = await openHouse();
  onTestFinished(() => house.close());
  const settings = house.gateway.settings();
  const lines: string[] = [];
  const refused: string[] = [];
  let isBroken = true;
  const reloader = createReloader({
    load() {
      if (isBroken) throw new TypeError('Invalid URL');
      return { ok: true, settings, files: [], warnings: [] } as never;
    },
    gateway: Promise.resolve(house.gateway),
    settings,
    files: [],
    log: createLogger({ level: 'info', format: 'json', write: (line) => lines.push(line) }),
    onRefused: () => refused.push('refused'),
  });
  onTestFinished(() => reloader.close());
  const events = (): unknown[] => lines.map((line) => (JSON.parse(line) as { event: string }).event);
  await reloader.reload('SIGHUP');
  expect([events(), refused]).toEqual([['reload_failed'], ['refused']]);
  isBroken = false;
  await reloader.reload('SIGHUP');
  expect(events()).toEqual(['reload_failed', 'reloaded']);
  expect((await house.grant()).token_type).toBe('Bearer');
});
