import fc from 'fast-check';
import { expect } from 'vitest';
import { type AccessTerms, createAccessLog, type RequestFacts } from '../../src/observability/access-log.ts';
import type { LogOutput } from '../../src/observability/logger.ts';

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

/** A log with a filled cache writes the same lines as a new one for each request. */
export function cachedLinesAreEqual(numRuns: number): void {
  fc.assert(
    fc.property(
      fc.array(someFacts, { minLength: 1, maxLength: 30 }),
      fc.constantFrom(...TERMS),
      fc.constantFrom('json', 'text'),
      (all, terms, format) => {
        expect(linesOf(all, terms, format, false)).toEqual(linesOf(all, terms, format, true));
      },
    ),
    { numRuns },
  );
}
