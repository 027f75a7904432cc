import { test } from 'vitest';
import { abortRequests } from './aborted-requests.ts';
import { useAttackGateway } from './attack-gateway.ts';

const attack = useAttackGateway();
const COUNT = Number(process.env['ROW_COUNT'] ?? 10_000);

test(
  `X12 ${COUNT} requests aborted by their clients at a random byte leave no upstream connection open`,
  {
    timeout: 60_000 + COUNT * 60,
  },
  () => abortRequests(attack, COUNT),
);
