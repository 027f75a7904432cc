import { describe } from 'vitest';
import { needs } from '../set-up/programs.ts';
import { testForwardAuth } from './forward-auth.ts';
import { startNginx } from './proxies.ts';

needs('nginx');

describe('nginx', () => {
  testForwardAuth({
    start: startNginx,
    whenUnreachable: 500,
    forwardsRefusals: false,
  });
});
