import { describe } from 'vitest';
import { needs } from '../set-up/programs.ts';
import { testForwardAuth } from './forward-auth.ts';
import { startCaddy } from './proxies.ts';

needs('caddy');

describe('Caddy', () => {
  testForwardAuth({ start: startCaddy, whenUnreachable: 502 });
});
