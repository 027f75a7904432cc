import { existsSync, mkdtempSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { parse } from 'yaml';
import type { SettingsInput } from '../../src/config/schema.ts';
import { type Scrape, scrape } from '../support/scrape.ts';
import {
  connect,
  connectMany,
  createServeFolder,
  groupByWorker,
  isAlive,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';
import { baseSettings, startGateway, type TestGateway, writeAndLoadSettings } from '../support/test-gateway.ts';
import { type HttpReceiver, startHttpReceiver } from './audit-receivers.ts';

describe('two workers', () => {
  let folder: ServeFolder;
  let server: ServeProcess;
  beforeAll(async () => {
    folder = await createServeFolder((settings) => ({
      ...settings,
      listen: { ...settings.listen, workers: 2 },
      audit: { sink: 'file', file: 'audit.log' },
    }));
    server = await startServe(folder);
  });
  afterAll(() => folder.remove());

  const sumFamily = ({ samples }: Scrape, family: string): number =>
    [...samples].reduce((sum, [name, value]) => (name.startsWith(`${family}{`) ? sum + value : sum), 0);
  const countRequests = async (): Promise<number> =>
    sumFamily(await scrape(server.adminPort), 'gatehouse_http_requests_total');
  const readLines = (file: string): Record<string, unknown>[] =>
    existsSync(file)
      ? readFileSync(file, 'utf8')
          .split('\n')
          .filter((line) => line !== '')
          .map((line) => JSON.parse(line) as Record<string, unknown>)
      : [];

  test('are scraped together; a scrape does not wait for a hanging worker, and the counts of a killed one are kept', async () => {
    const clients = await connectMany(folder, server, 8, folder.alice);
    const groups = groupByWorker(clients);
    expect(groups.size).toBe(2);
    for (const client of clients) await client.grant();
    await until('all requests are counted', async () => (await countRequests()) === 16);
    const before = await scrape(server.adminPort);
    expect(before.value('gatehouse_workers')).toBe(2);
    expect(before.value('gatehouse_tokens_issued_total{grant="certificate"}')).toBe(8);
    expect(before.value('gatehouse_ready')).toBe(1);
    expect(before.value('gatehouse_connections')).toBe(8);

    const [victim = 0] = groups.keys();
    process.kill(victim, 'SIGSTOP');
    const hanging = await scrape(server.adminPort);
    expect(hanging.value('gatehouse_tokens_issued_total{grant="certificate"}')).toBe(8);
    process.kill(victim, 'SIGKILL');
    await until('the worker has exited', () => !isAlive(victim));
    await until(
      'the worker is replaced',
      async () => (await scrape(server.adminPort)).value('gatehouse_workers') === 2,
    );
    const after = await scrape(server.adminPort);
    expect(after.value('gatehouse_tokens_issued_total{grant="certificate"}')).toBe(8);
    expect(sumFamily(after, 'gatehouse_http_requests_total')).toBe(16);
    for (const client of clients) client.close();
  });

  test('keep their counts when they are replaced', async () => {
    const before = await countRequests();
    const pids = server.log.filter(({ event }) => event === 'workers_restarted').length;
    server.signal('SIGUSR2');
    await until(
      'all workers are replaced',
      () => server.log.filter(({ event }) => event === 'workers_restarted').length > pids,
      40,
    );
    expect(await countRequests()).toBe(before);
  });

  test('write one audit file, which is reopened on SIGHUP, and no audit event is in the log', async () => {
    const file = folder.file('audit.log');
    expect(readLines(file).filter(({ event }) => event === 'grant_issued').length).toBe(8);
    expect(readLines(file).map(({ event }) => event)).toContain('service_started');
    expect(statSync(file).mode & 0o777).toBe(0o600);
    expect(server.log.some((line) => line.audit === true)).toBe(false);
    renameSync(file, `${file}.1`);
    server.signal('SIGHUP');
    await until('the new file exists', () => existsSync(file));
    const client = connect(folder, server.port, folder.alice);
    await client.grant();
    await until('the event is in the new file', () => readLines(file).some(({ event }) => event === 'grant_issued'));
    client.close();
  });

  test('O05 a rejected configuration is counted, and an accepted one updates the time of the last reload', async () => {
    const before = await scrape(server.adminPort);
    writeFileSync(folder.file('gatehouse.yaml'), 'nonsense: true\n');
    await until('the rejection is counted', async () => {
      const now = (await scrape(server.adminPort)).value('gatehouse_config_reload_failed_total');
      return now > before.value('gatehouse_config_reload_failed_total');
    });
    folder.configure((settings) => ({ ...settings, publicUrl: 'https://localhost:8444' }));
    const time = 'gatehouse_config_reload_success_timestamp_seconds';
    await until(
      'both workers have reloaded',
      async () => (await scrape(server.adminPort)).value(time) > before.value(time),
    );
    await until('the reload and its changes are in the audit log', () =>
      readLines(folder.file('audit.log')).some(
        ({ event, sections }) => event === 'configuration_changed' && JSON.stringify(sections) === '["publicUrl"]',
      ),
    );
  });
});

describe('audit.failClosed', () => {
  let gateway: TestGateway;
  let receiver: HttpReceiver;
  const countEvents = (name: string): number =>
    receiver.deliveries.flatMap(({ body }) => body.match(new RegExp(`"event":"${name}"`, 'g')) ?? []).length;
  beforeAll(async () => {
    receiver = await startHttpReceiver();
    gateway = await startGateway((settings) => ({
      ...settings,
      audit: { sink: 'webhook', failClosed: true, webhook: { url: receiver.url, secret: 'x'.repeat(20) } },
    }));
  });
  afterAll(async () => {
    await gateway.close();
    await receiver.close();
  });

  test('while the sink refuses events, no grant is issued or refreshed, revocation and the API work, and it recovers by itself', async () => {
    const grant = await gateway.grant();
    const other = await gateway.grant();
    await until('the sink has received the event', () => countEvents('grant_issued') === 2);
    receiver.respond(503);
    // The first undelivered event reveals the failure.
    await gateway.post('/Authorize/Token', { client_id: 'nobody', refresh_token: 'x' });
    const requestGrant = () =>
      gateway.post(
        '/Authorize/Certificate',
        { client_id: 'report-runner', scope: 'files:read' },
        { as: gateway.users.alice },
      );
    const rejected = await until('grants are rejected', async () => {
      const reply = await requestGrant();
      return reply.status !== 200 && reply;
    });
    expect(rejected.headers['retry-after']).toBe('5');
    expect(rejected.text).toContain('Temporary internal error');
    const refresh = await gateway.refresh(grant.refresh_token);
    expect([refresh.status, refresh.headers['retry-after']]).toEqual([rejected.status, '5']);
    expect((await gateway.api('/files/x', grant.access_token)).status).toBe(200);
    expect((await gateway.api('/authsvc/Revoke/Token', other.access_token)).status).toBe(200);
    expect((await gateway.api('/files/x', other.access_token)).status).toBe(401);
    expect(gateway.log.some(({ event, reason }) => event === 'request' && reason === 'audit_unavailable')).toBe(true);

    receiver.respond(200);
    await until('grants are issued again', async () => (await requestGrant()).status === 200);
    expect((await gateway.refresh(grant.refresh_token)).status).toBe(200);
  });
});

test('an audit file that cannot be written is reported at start', async () => {
  const started = startGateway((settings) => ({
    ...settings,
    audit: { sink: 'file', file: '/proc/nowhere/audit.log' },
  }));
  await expect(started).rejects.toThrow('audit.file: /proc/nowhere/audit.log cannot be written (ENOENT)');
});

test.each([
  [{ sink: 'file' }, 'audit.file'],
  [{ sink: 'webhook', webhook: { url: 'https://example.test/' } }, 'audit.webhook'],
  [{ sink: 'webhook', webhook: { url: 'https://me:pass@example.test/', secret: 'x'.repeat(20) } }, 'audit.webhook.url'],
])('an incomplete audit section is rejected with its path: %o', (audit, place) => {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-audit-'));
  try {
    expect(() => writeAndLoadSettings(folder, { ...baseSettings(1), audit: audit as never })).toThrow(place);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test('the configurations in docs/observability.md are valid', () => {
  const page = readFileSync(join(import.meta.dirname, '../../docs/observability.md'), 'utf8');
  const blocks = [...page.matchAll(/^```yaml\n([\s\S]*?)^```$/gm)].map(([, text = '']) => text);
  expect(blocks.length).toBe(3);
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-audit-'));
  try {
    writeFileSync(join(folder, 'secret'), 'a secret of many characters');
    for (const block of blocks) {
      const example = parse(block.replaceAll(/\/run\/secrets\/[a-z-]+/g, join(folder, 'secret'))) as SettingsInput;
      expect(writeAndLoadSettings(folder, { ...baseSettings(1), ...example })).toBeDefined();
    }
  } finally {
    rmSync(folder, { recursive: true });
  }
});
