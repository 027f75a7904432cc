import { describe } from 'vitest';
import { needs } from '../set-up/programs.ts';
import { testForwardAuth } from './forward-auth.ts';
import { startEnvoy } from './proxies.ts';

needs('envoy');

describe('Envoy', () => {
  testForwardAuth({ start: startEnvoy, whenUnreachable: 503, forwardsHost: false });
});
