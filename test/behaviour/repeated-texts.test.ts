import fc from 'fast-check';
import { expect, test } from 'vitest';
import { type AccessTerms, createAccessLog, type RequestFacts } from '../../src/observability/access-log.ts';
import { flat } from '../../src/observability/flat-text.ts';
import type { LogOutput } from '../../src/observability/logger.ts';
import { Recent } from '../../src/observability/recent.ts';
import { isTraceparent, newTraceparent } from '../../src/observability/trace.ts';
import { readRequestLine } from '../../src/proxy/fast/grammar.ts';
import { requestId } from '../../src/tls/caller.ts';

/** What is worked out once and then repeated must be what would be worked out each time. */

const few = (...texts: string[]): fc.Arbitrary<string | undefined> => fc.constantFrom(undefined, ...texts);

const someFacts: fc.Arbitrary<RequestFacts> = fc.record({
  id: fc.constantFrom('aaaaaaaaaaaaaaaa', 'bbbbbbbbbbbbbbbb'),
  trace: few('00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00'),
  parentSpan: fc.constant(undefined),
  from: fc.constantFrom('127.0.0.1', '192.0.2.7'),
  method: few('GET', 'POST'),
  url: few('/files/1', '/files/"2', '/x?access_token=secret'),
  status: fc.constantFrom(200, 403, 502),
  aborted: fc.boolean(),
  seconds: fc.constantFrom(0.0004, 12.34),
  upstreamSeconds: fc.constantFrom(undefined, 0.0002),
  bytesIn: fc.constantFrom(undefined, 0, 7),
  bytesOut: fc.constantFrom(undefined, 1_024),
  rule: few('files', 'reports'),
  decision: few('forwarded', 'refused'),
  reason: few('scope_unmet', 'client_left'),
  identity: few('alice', 'Bärbel', '李雷', 'x'.repeat(300)),
  clientId: few('runner', 'c'.repeat(400)),
  grantId: few('grant-1', 'grant-2'),
  upstream: few('default', 'other'),
  original: few('GET /a'),
});

const TERMS: readonly AccessTerms[] = [
  { exclude: [], pseudonymise: [] },
  { exclude: ['identity', 'rule'], pseudonymise: ['client', 'grant'], pseudonymKey: 'k'.repeat(32) },
];

function linesOf(
  all: readonly RequestFacts[],
  terms: AccessTerms,
  format: 'json' | 'text',
  each: boolean,
): string[] {
  const lines: string[] = [];
  const output: LogOutput = {
    format,
    fields: { worker: 1 },
    now: () => 1_000,
    takes: () => true,
    write: (line) => void lines.push(line),
  };
  let log = createAccessLog(output, terms);
  for (const facts of all) {
    if (each) log = createAccessLog(output, terms);
    log(facts);
  }
  return lines;
}

test('O a log that remembers writes the lines of one that has never seen anybody', () => {
  fc.assert(
    fc.property(
      fc.array(someFacts, { minLength: 1, maxLength: 30 }),
      fc.constantFrom(...TERMS),
      fc.constantFrom('json', 'text'),
      (all, terms, format) => {
        expect(linesOf(all, terms, format, false)).toEqual(linesOf(all, terms, format, true));
      },
    ),
    { numRuns: 300 },
  );
});

test('O each id and each trace is given once, also where one supply ends and the next begins', () => {
  const nobody = { some: false, includes: () => false };
  const ids = Array.from({ length: 5_000 }, () => requestId('192.0.2.7', [], nobody));
  const traces = Array.from({ length: 5_000 }, newTraceparent);
  expect(new Set(ids).size).toBe(ids.length);
  expect(ids.filter((id) => !/^[A-Za-z0-9_-]{16}$/.test(id))).toEqual([]);
  expect(new Set(traces.map((trace) => trace.slice(3, 35))).size).toBe(traces.length);
  expect(new Set(traces.map((trace) => trace.slice(36, 52))).size).toBe(traces.length);
  expect(traces.filter((trace) => !isTraceparent(trace) || !trace.endsWith('-00'))).toEqual([]);
});

test('a text in one piece is the same text, whatever it is written in', () => {
  fc.assert(fc.property(fc.string({ unit: 'binary' }), (text) => flat(`a${text}`) === `a${text}`));
});

test('X what is remembered is bounded, and never somebody else’s', () => {
  const recent = new Recent<number>(8, 10);
  for (let at = 0; at < 1_000; at += 1) recent.set(`t${at}`, at);
  const kept = Array.from({ length: 1_000 }, (_, at) => recent.get(`t${at}`));
  expect(kept.filter((value, at) => value !== undefined && value !== at)).toEqual([]);
  expect(kept.filter((value) => value !== undefined).length).toBeLessThanOrEqual(16);
  expect(recent.get('t999')).toBe(999);
  recent.set('longer than ten', 1);
  expect(recent.get('longer than ten')).toBeUndefined();
});

test('H a request line is read as the expression that is written out in decision 15 names reads it', () => {
  const written = /^(GET|HEAD|POST|PUT|PATCH|DELETE) (\/[\x21\x22\x24-\x7e]*) HTTP\/1\.1$/;
  const line = fc
    .tuple(
      fc.constantFrom('GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'GE', 'GETS', 'get', 'OPTIONS', ''),
      fc.constantFrom(' ', '  ', '\t', ''),
      fc.oneof(
        fc.constantFrom('/', '/a b', '/#', 'http://a/', '*', '/a HTTP/1.1', '/\r\n', '/\x7f'),
        fc.string(),
      ),
      fc.constantFrom(' HTTP/1.1', ' HTTP/1.0', ' HTTP/1.1 ', '', ' HTTP/1.1\n', ' HTTP/1.1 HTTP/1.1'),
    )
    .map((parts) => parts.join(''));
  fc.assert(
    fc.property(line, (text) => {
      const parts = written.exec(text);
      expect(readRequestLine(text)).toEqual(
        parts === null ? undefined : { method: parts[1], target: parts[2] },
      );
    }),
    { numRuns: 5_000 },
  );
});
