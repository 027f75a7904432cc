import fc from 'fast-check';
import { expect, test } from 'vitest';
import { flattenString } from '../../src/lib/flat-string.ts';
import { TwoGenerationCache } from '../../src/lib/two-generation-cache.ts';
import { resolveRequestId } from '../../src/listener/client-address.ts';
import { isTraceparent, newTraceparent } from '../../src/observability/trace-context.ts';
import { expectEqualLines } from './access-log-cache.ts';

/** Cached results must be equal to newly computed ones. */

test('an access log with a filled cache writes the same lines as a new one', () => expectEqualLines(20));

test('request and trace ids never repeat, also across batches', () => {
  const unknown = { hasEntries: false, includes: () => false };
  const ids = Array.from({ length: 5_000 }, () => resolveRequestId('192.0.2.7', [], unknown));
  const traces = Array.from({ length: 5_000 }, newTraceparent);
  expect(new Set(ids).size).toBe(ids.length);
  expect(ids.filter((id) => !/^[A-Za-z0-9_-]{16}$/.test(id))).toEqual([]);
  expect(new Set(traces.map((trace) => trace.slice(3, 35))).size).toBe(traces.length);
  expect(new Set(traces.map((trace) => trace.slice(36, 52))).size).toBe(traces.length);
  expect(traces.filter((trace) => !isTraceparent(trace) || !trace.endsWith('-00'))).toEqual([]);
});

test('a flattened string equals the original in any encoding', () => {
  const anyText = fc.array(fc.nat(0xffff)).map((units) => String.fromCharCode(...units));
  fc.assert(fc.property(anyText, (text) => flattenString(`a${text}`) === `a${text}`));
});

test('the header cache is bounded and never returns another entry', () => {
  const recent = new TwoGenerationCache<number>(8, 10);
  for (let at = 0; at < 1_000; at += 1) recent.set(`t${at}`, at);
  const kept = Array.from({ length: 1_000 }, (_, at) => recent.get(`t${at}`));
  expect(kept.filter((value, at) => value !== undefined && value !== at)).toEqual([]);
  expect(kept.filter((value) => value !== undefined).length).toBeLessThanOrEqual(16);
  expect(recent.get('t999')).toBe(999);
  recent.set('longer than ten', 1);
  expect(recent.get('longer than ten')).toBeUndefined();
});
