import { test } from 'vitest';
import { expectAgreement, withExplainedGateway } from './explained-requests.ts';

withExplainedGateway();

test('explain and the running gateway agree on 1,000 random requests', { timeout: 240_000 }, () =>
  expectAgreement(1_000),
);
