import { describe } from 'vitest';
import { testLongResponses, testStalledReaders } from './long-responses.ts';

const REQUESTS = Number(process.env['ROW_COUNT'] ?? 3_000);

describe.each(['plain', 'TLS'] as const)('to clients over %s', (transport) => {
  testLongResponses(transport, REQUESTS);
  testStalledReaders(transport, 8);
});
