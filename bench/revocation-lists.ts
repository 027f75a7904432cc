/**
 * Measures a running gateway with a large CRL: `npm run bench:crl`, or with `-- --entries 100000` for another size. The event
 * loop is measured while the CRL is loaded, left unchanged by a reload, and replaced.
 */
import { writeFileSync } from 'node:fs';
import { arch, cpus } from 'node:os';
import { join } from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { parseArgs } from 'node:util';
import type { SettingsInput } from '../src/config/schema.ts';
import { watchEventLoop } from '../test/support/event-loop.ts';
import { largeCrl } from '../test/support/large-crl.ts';
import { issue, toPem } from '../test/support/pki.ts';
import { startGateway } from '../test/support/test-gateway.ts';
import { loadAverage } from './support/linux.ts';

const { values: given } = parseArgs({ options: { entries: { type: 'string', default: '1000000' } } });
const ENTRIES = Number(given.entries);

const gateway = await startGateway();
const revoked = await issue(gateway.ca, { commonName: 'alice' });
const { access_token: token } = await gateway.grant();
const withCrl = (settings: SettingsInput): SettingsInput => ({
  ...settings,
  certificates: { ...settings.certificates, crls: ['large.crl'] },
});
const write = async (entries: number, form: 'PEM' | 'DER'): Promise<void> => {
  const der = await largeCrl(gateway.ca, entries, [revoked]);
  writeFileSync(join(gateway.folder, 'large.crl'), form === 'DER' ? der : toPem('X509 CRL', der));
};

/** Sends requests while `run` runs. */
async function measure(what: string, run: () => Promise<unknown>): Promise<void> {
  const state = { isRunning: true };
  let longest = 0;
  let requests = 0;
  const client = (async () => {
    while (state.isRunning) {
      const startedAt = performance.now();
      const { status } = await gateway.api('/files/a', token);
      if (status !== 200) throw new Error(`status ${status}`);
      longest = Math.max(longest, performance.now() - startedAt);
      requests += 1;
    }
  })();
  const startedAt = performance.now();
  const { longestCpu, longestDelay } = await watchEventLoop(run);
  const seconds = (performance.now() - startedAt) / 1_000;
  state.isRunning = false;
  await client;
  const times = [longestCpu, longestDelay, longest].map((ms) => `${ms.toFixed(0)} ms`);
  console.log(`| ${[what, `${seconds.toFixed(2)} s`, ...times, requests].join(' | ')} |`);
}

console.log(`${ENTRIES} entries, ${cpus()[0]?.model ?? arch()}, load ${loadAverage()}\n`);
console.log(
  '| reload | takes | longest event-loop iteration (CPU) | longest event-loop delay | longest request | requests |',
);
console.log('|---|---|---|---|---|---|');
await write(1, 'PEM');
await gateway.reload(withCrl);
/** Skips loading the configuration file, which takes the same time for every reload. */
const reload = () => gateway.server.reload(gateway.server.settings());
await measure('none (warm-up)', () => setTimeout(2_000));
await measure('none', () => setTimeout(5_000));
await measure('a CRL with one entry', reload);
await write(ENTRIES, 'DER');
await measure('DER, new', reload);
await measure('DER, unchanged', reload);
await write(ENTRIES + 1, 'PEM');
await measure('PEM, replaced', reload);
await measure('PEM, unchanged', reload);
const rejected = await gateway.post(
  '/Authorize/Certificate',
  { client_id: 'report-runner', scope: 'files:read' },
  { as: revoked },
);
if (rejected.status !== 401) throw new Error(`a revoked certificate got status ${rejected.status}`);
await gateway.close();
