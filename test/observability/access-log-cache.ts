import fc from 'fast-check';
import { expect } from 'vitest';
import { type AccessLogOptions, createAccessLog, type RequestRecord } from '../../src/observability/access-log.ts';
import type { LogOutput } from '../../src/observability/logger.ts';

const optional = (...texts: string[]): fc.Arbitrary<string | undefined> => fc.constantFrom(undefined, ...texts);

const someRecord: fc.Arbitrary<RequestRecord> = fc.record({
  id: fc.constantFrom('aaaaaaaaaaaaaaaa', 'bbbbbbbbbbbbbbbb'),
  traceparent: optional('00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00'),
  parentSpan: fc.constant(undefined),
  clientAddress: fc.constantFrom('127.0.0.1', '192.0.2.7'),
  method: optional('GET', 'POST'),
  url: optional('/files/1', '/files/"2', '/x?access_token=secret'),
  status: fc.constantFrom(200, 403, 502),
  aborted: fc.boolean(),
  seconds: fc.constantFrom(0.0004, 12.34),
  upstreamSeconds: fc.constantFrom(undefined, 0.0002),
  bytesIn: fc.constantFrom(undefined, 0, 7),
  bytesOut: fc.constantFrom(undefined, 1_024),
  rule: optional('files', 'reports'),
  decision: optional('forwarded', 'refused'),
  reason: optional('insufficient_scope', 'client_disconnected'),
  identity: optional('alice', 'Bärbel', '李雷', 'x'.repeat(300)),
  name: optional('alice', 'Bärbel'),
  clientId: optional('runner', 'c'.repeat(400)),
  grantId: optional('grant-1', 'grant-2'),
  upstream: optional('default', 'other'),
  originalRequest: optional('GET /a'),
  grpcStatus: fc.constantFrom(undefined, 0, 16),
  grpcMethod: optional('a.B/C'),
});

const OPTIONS: readonly AccessLogOptions[] = [
  { exclude: [], pseudonymise: [] },
  { exclude: ['identity', 'rule'], pseudonymise: ['client', 'grant'], pseudonymKey: 'k'.repeat(32) },
];

function writeLines(
  all: readonly RequestRecord[],
  options: AccessLogOptions,
  format: 'json' | 'text',
  each: boolean,
): string[] {
  const lines: string[] = [];
  const output: LogOutput = {
    format,
    fields: { worker: 1 },
    now: () => 1_000,
    isEnabled: () => true,
    write: (line) => void lines.push(line),
  };
  let log = createAccessLog(output, options);
  for (const record of all) {
    if (each) log = createAccessLog(output, options);
    log(record);
  }
  return lines;
}

/** A log with a filled cache writes the same lines as a new one for each request. */
export function expectEqualLines(numRuns: number): void {
  fc.assert(
    fc.property(
      fc.array(someRecord, { minLength: 1, maxLength: 30 }),
      fc.constantFrom(...OPTIONS),
      fc.constantFrom('json', 'text'),
      (all, options, format) => {
        expect(writeLines(all, options, format, false)).toEqual(writeLines(all, options, format, true));
      },
    ),
    { numRuns },
  );
}
