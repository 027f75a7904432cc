import { expect, onTestFinished, test } from 'vitest';
import { createLogger } from '../../src/observability/logger.ts';
import { createMetrics } from '../../src/observability/metrics.ts';
import { IssuerKeysRegistry } from '../../src/server/trusted-issuers.ts';
import { startForeignIssuer } from '../support/foreign-issuer-server.ts';
import { createActiveScope } from '../support/resource-scope.ts';
import { until } from '../support/until.ts';

const NOW = 1_800_000_000;

async function start(isUp: boolean) {
  const server = await startForeignIssuer();
  onTestFinished(() => server.close());
  server.isUp = isUp;
  const log = createLogger({ level: 'error', format: 'json', write: () => {} });
  const registry = new IssuerKeysRegistry(log, createMetrics(), () => NOW);
  onTestFinished(() => registry.close());
  const source = {
    name: 'corp',
    issuer: server.url,
    refreshInterval: 0.05,
    cooldown: 0.05,
    maxStaleness: 600,
    timeout: 5,
    keySet: undefined,
    ca: undefined,
    certificate: undefined,
    key: undefined,
  };
  const waitFor = (state: string) =>
    until(`the issuer is ${state}`, () =>
      registry.listStatus().find((status) => status.name === 'corp' && status.state === state),
    );
  return { server, registry, source, waitFor };
}

test('an issuer that was never reached is unavailable, with the error, until its keys are fetched', async () => {
  const { server, registry, source, waitFor } = await start(false);
  registry.open(source, undefined, createActiveScope());
  expect(registry.listStatus()).toMatchObject([{ state: 'waiting', failure: undefined }]);
  const { failure, fetchedAt } = await waitFor('unavailable');
  expect([fetchedAt, failure?.since]).toEqual([undefined, NOW]);
  expect(failure?.error).toContain('503');
  server.isUp = true;
  expect((await waitFor('available')).failure).toBeUndefined();
});

test('while the last keys are used, an issuer is failing; once they are too old, it is unavailable', async () => {
  const { server, registry, source, waitFor } = await start(true);
  registry.open(source, undefined, createActiveScope());
  await waitFor('available');
  server.isUp = false;
  expect((await waitFor('failing')).fetchedAt).toBeLessThanOrEqual(NOW);
  // A reload with another setting keeps the keys, and the state.
  registry.open({ ...source, maxStaleness: 0.01 }, undefined, createActiveScope());
  expect((await waitFor('unavailable')).failure?.since).toBe(NOW);
});

test('keys in a file have no state', async () => {
  const { registry, source } = await start(true);
  registry.open({ ...source, keySet: '{"keys":[]}' }, [], createActiveScope());
  expect(registry.listStatus()).toEqual([]);
});
