import { createHmac } from 'node:crypto';
import { existsSync, mkdtempSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type AuditLog, type AuditSink, openAuditLog } from '../../src/observability/audit-log.ts';
import { openAuditFile, openAuditWebhook } from '../../src/observability/audit-sinks.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { createMetrics } from '../../src/observability/metrics.ts';
import { until } from '../support/serve-process.ts';
import { startHttpReceiver } from './audit-receivers.ts';

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'gatehouse-audit-'));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const SECRET = 'a secret of twenty-four.';

interface Opened extends AuditLog {
  readonly lines: Record<string, unknown>[];
  figure(name: string): Promise<number>;
}

function openLog(sink: AuditSink, buffer = 10_000): Opened {
  const lines: Record<string, unknown>[] = [];
  const metrics = createMetrics();
  const log = createLogger({
    level: 'info',
    format: 'json',
    write: (line) => void lines.push(JSON.parse(line)),
  });
  const audit = openAuditLog({ sink, buffer, log, metrics, backoffMs: { initial: 5, max: 20 } });
  return {
    ...audit,
    lines,
    async figure(name) {
      const snapshot = (await metrics.snapshot()) as Record<string, [string, number][]>;
      return snapshot[name]?.[0]?.[1] ?? Number.NaN;
    },
  };
}

const GRANT = { grant: 'g1', client: 'report-runner', identity: 'local:{x}', scope: 'files:read' };
const readEvents = (file: string): Record<string, unknown>[] =>
  (existsSync(file) ? readFileSync(file, 'utf8') : '')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Record<string, unknown>);

describe('a file', () => {
  test('gets a line for each event, is readable by its owner only, and is reopened after a rename', async () => {
    const file = join(folder, 'audit.log');
    const audit = openLog(await openAuditFile(file, { sync: true }));
    audit.audit('grant_issued', GRANT);
    await until('a line is written', () => readEvents(file).length === 1);
    expect(readEvents(file)[0]).toMatchObject({ audit: true, event: 'grant_issued', ...GRANT });
    expect(statSync(file).mode & 0o777).toBe(0o600);

    renameSync(file, `${file}.1`);
    audit.audit('grant_refreshed', GRANT);
    await until('the old file is still written', () => readEvents(`${file}.1`).length === 2);
    audit.reopen();
    audit.audit('grant_revoked', GRANT);
    await until('the new file is written', () => readEvents(file).length === 1);
    expect(readEvents(file)[0]).toMatchObject({ event: 'grant_revoked' });
    expect(statSync(file).mode & 0o777).toBe(0o600);
    await audit.close();
  });

  test('can be written by several processes without lost or interleaved lines', async () => {
    const file = join(folder, 'shared.log');
    const logs = await Promise.all(
      Array.from({ length: 4 }, async () => openLog(await openAuditFile(file, { sync: false }))),
    );
    for (let index = 0; index < 500; index += 1)
      for (const [who, log] of logs.entries()) log.audit('grant_issued', { grant: `${who}-${index}` });
    await Promise.all(logs.map((log) => log.close()));
    expect(new Set(readEvents(file).map(({ grant }) => grant)).size).toBe(2_000);
  });

  test('that becomes unwritable is reported, and events are buffered until it is writable', async () => {
    // Behaves like a full disk.
    const full = await openAuditFile('/dev/full', { sync: false });
    const audit = openLog(full);
    audit.audit('grant_issued', GRANT);
    await until('the failure is detected', () => audit.isBlocked());
    expect(audit.lines[0]).toMatchObject({ event: 'audit_sink_failed', code: 'ENOSPC' });
    expect(await audit.figure('gatehouse_audit_blocked')).toBe(1);
    expect(await audit.figure('gatehouse_audit_failures_total')).toBeGreaterThan(0);
    await audit.close();
    expect(audit.lines.at(-1)).toMatchObject({ event: 'audit_events_lost', lost: 1 });
  });
});

describe('a webhook', () => {
  const verify = ({ headers, body }: { headers: Record<string, unknown>; body: string }): boolean => {
    const time = String(headers['x-gatehouse-timestamp']);
    const expected = `v1=${createHmac('sha256', SECRET).update(`${time}.${body}`).digest('hex')}`;
    return headers['x-gatehouse-signature'] === expected && Math.abs(Date.now() / 1_000 - Number(time)) < 60;
  };

  test('gets events in batches, each with a signature, the current time and its own id', async () => {
    const receiver = await startHttpReceiver();
    const audit = openLog(openAuditWebhook({ url: `${receiver.url}/hook`, secret: SECRET, batchSize: 10 }));
    for (let index = 0; index < 25; index += 1) audit.audit('grant_issued', { grant: `g${index}` });
    await audit.close();
    const bodies = receiver.deliveries.map(({ body }) => (JSON.parse(body) as { events: { grant: string }[] }).events);
    expect(bodies.flat().map(({ grant }) => grant)).toEqual(Array.from({ length: 25 }, (_, index) => `g${index}`));
    expect(Math.max(...bodies.map(({ length }) => length))).toBeLessThanOrEqual(10);
    expect(receiver.deliveries.every(verify)).toBe(true);
    expect(new Set(receiver.deliveries.map(({ headers }) => headers['x-gatehouse-delivery'])).size).toBe(bodies.length);
    expect(receiver.deliveries[0]).toMatchObject({
      path: '/hook',
      headers: { 'content-type': 'application/json' },
    });
    await receiver.close();
  });

  test.each([500, 429, 404, 307])(
    'that responds with %i gets the same delivery with the same id until it accepts it',
    async (status) => {
      const receiver = await startHttpReceiver();
      receiver.respond(status);
      const audit = openLog(openAuditWebhook({ url: receiver.url, secret: SECRET, batchSize: 10 }));
      audit.audit('grant_revoked', GRANT);
      await until('three attempts are made', () => receiver.deliveries.length >= 3);
      expect(audit.isBlocked()).toBe(true);
      receiver.respond(204);
      await until('the delivery is accepted', () => !audit.isBlocked());
      const ids = new Set(receiver.deliveries.map(({ headers }) => headers['x-gatehouse-delivery']));
      expect(ids.size).toBe(1);
      expect(receiver.deliveries.every(verify)).toBe(true);
      await audit.close();
      await receiver.close();
    },
  );
});

describe('a sink that accepts nothing', () => {
  test('drops the oldest events when full, rejections before other events, and reports it', async () => {
    const taken: string[] = [];
    let open = false;
    const sink: AuditSink = {
      batchSize: 1,
      async deliver(records) {
        if (!open) throw new Error('not now');
        taken.push(...records.map(({ line }) => String((JSON.parse(line) as { n: number }).n)));
      },
      close: async () => {},
    };
    const audit = openLog(sink, 100);
    for (let n = 0; n < 60; n += 1) audit.audit('grant_issued', { n });
    for (let n = 60; n < 160; n += 1) audit.audit(n % 2 === 0 ? 'grant_denied' : 'grant_issued', { n });
    expect(audit.isBlocked()).toBe(true);
    expect(await audit.figure('gatehouse_audit_pending')).toBe(100);
    expect(await audit.figure('gatehouse_audit_dropped_total')).toBe(60);
    await until('the loss is logged', () => audit.lines.some(({ event }) => event === 'audit_events_lost'));
    open = true;
    await until('all events are accepted', () => taken.length === 100);
    const acts = Array.from({ length: 160 }, (_, n) => n).filter((n) => n < 60 || n % 2 === 1);
    // All rejections are dropped, and the ten oldest of 110 actions, except the one that was being sent.
    expect(taken).toEqual([acts[0], ...acts.slice(11)].map(String));
    await audit.close();
  });
});

test('secrets in an audit event are not written to any sink', async () => {
  const file = join(folder, 'secrets.log');
  const audit = openLog(await openAuditFile(file, { sync: false }));
  audit.audit('grant_denied', { detail: 'ghr_abcdefgh.1.secretpart', authorization: 'Bearer abc' });
  await audit.close();
  expect(readFileSync(file, 'utf8')).not.toMatch(/secretpart|abc"/);
  writeFileSync(file, '');
});
