import { expect, test } from 'vitest';
import { RingBuffer } from '../../src/lib/ring-buffer.ts';
import type { RequestRecord } from '../../src/observability/access-log.ts';
import { createRecentEvents, mergeRecentEvents } from '../../src/observability/recent-events.ts';
import { heapAfterCollection } from '../support/heap.ts';

const record = (fields: Partial<RequestRecord>): RequestRecord => ({
  id: 'id',
  traceparent: undefined,
  parentSpan: undefined,
  clientAddress: '192.0.2.1',
  method: 'GET',
  url: '/a?b=c',
  status: 403,
  aborted: false,
  seconds: 0,
  upstreamSeconds: undefined,
  bytesIn: undefined,
  bytesOut: undefined,
  rule: 'routes[0]',
  decision: 'refused',
  reason: 'insufficient_scope',
  identity: 'local:1',
  name: 'alice',
  clientId: 'app',
  grantId: 'grant',
  upstream: undefined,
  originalRequest: undefined,
  grpcStatus: undefined,
  grpcMethod: undefined,
  ...fields,
});
const NOTHING_HIDDEN = { exclude: [], pseudonymise: [] };

test('a ring buffer keeps the newest values', () => {
  const ring = new RingBuffer<number>(3);
  expect([...ring.newestFirst()]).toEqual([]);
  for (const value of [1, 2]) ring.add(value);
  expect([...ring.newestFirst()]).toEqual([2, 1]);
  for (const value of [3, 4, 5]) ring.add(value);
  expect([...ring.newestFirst()]).toEqual([5, 4, 3]);
});

test('refused, failed and report-only requests are kept, others are not', () => {
  const events = createRecentEvents(() => 1);
  const add = events.createRefusalRecorder(NOTHING_HIDDEN);
  for (const decision of ['refused', 'failed', 'would_refuse', 'forwarded', 'allowed', 'handled', undefined])
    add(record({ decision, id: decision ?? 'none' }));
  const { refusals } = events.find({ kind: 'refusals', limit: 10 });
  expect(refusals.map(({ id }) => id)).toEqual(['would_refuse', 'failed', 'refused']);
});

test('a record does not keep the query, tokens, or more than a bounded part of long fields', () => {
  const events = createRecentEvents(() => 1);
  const add = events.createRefusalRecorder(NOTHING_HIDDEN);
  const jwt = `eyJ${'a'.repeat(30)}.${'b'.repeat(30)}.${'c'.repeat(30)}`;
  add(record({ url: `/x/${jwt}?token=${jwt}`, clientId: 'c'.repeat(5_000), method: 'M'.repeat(900) }));
  const text = JSON.stringify(events.find({ kind: 'refusals', limit: 1 }));
  expect(text).not.toMatch(/eyJa|token=/);
  expect(text.length).toBeLessThan(2_000);
});

test('a token at the end of the kept part of a path is not kept without its end', () => {
  const events = createRecentEvents(() => 1);
  const add = events.createRefusalRecorder(NOTHING_HIDDEN);
  const token = `${'Ab1/'.repeat(15)}Qx==`;
  for (let length = 430; length < 520; length += 1) add(record({ url: `/${'-'.repeat(length)}${token}` }));
  expect(JSON.stringify(events.find({ kind: 'refusals', limit: 500 }))).not.toContain('Ab1');
});

test.each(['a', '\u20ac'])('kept fields do not keep the long texts of which they are a part: %s', (character) => {
  const events = createRecentEvents(() => 1);
  const add = events.createRefusalRecorder(NOTHING_HIDDEN);
  const before = heapAfterCollection();
  for (let at = 0; at < 500; at += 1) add(record({ clientId: `${at}${character.repeat(100_000)}`.trim() }));
  expect(events.find({ kind: 'refusals', limit: 500 }).refusals).toHaveLength(500);
  expect(heapAfterCollection() - before).toBeLessThan(10_000_000);
});

test('events are found by id and by text in any field, newest first, up to the limit', () => {
  let now = 0;
  const events = createRecentEvents(() => (now += 1));
  const add = events.createRefusalRecorder(NOTHING_HIDDEN);
  for (let at = 0; at < 700; at += 1) add(record({ id: `r${at}`, url: at % 2 === 0 ? '/Even' : '/odd' }));
  const find = (query: object) => events.find({ kind: 'refusals', limit: 1_000, ...query }).refusals;
  expect(find({})).toHaveLength(500);
  expect(find({ limit: 2 }).map(({ id }) => id)).toEqual(['r699', 'r698']);
  expect(find({ id: 'r300' }).map(({ id }) => id)).toEqual(['r300']);
  expect(find({ id: 'r100' })).toEqual([]);
  expect(find({ text: 'even' })).toHaveLength(250);
});

test('events of several processes are merged by time', () => {
  const [first, second] = [createRecentEvents(() => 10), createRecentEvents(() => 20)];
  first.recordAudit('service_started', { note: 'a' });
  second.recordAudit('service_stopped', { secret: 'hidden', list: ['x'.repeat(900)] });
  const query = { kind: 'audit', limit: 5 } as const;
  const { audit } = mergeRecentEvents([first.find(query), second.find(query)], 5);
  expect(audit.map(({ event }) => event)).toEqual(['service_stopped', 'service_started']);
  expect(JSON.stringify(audit)).not.toContain('hidden');
  expect(JSON.stringify(audit).length).toBeLessThan(700);
});
