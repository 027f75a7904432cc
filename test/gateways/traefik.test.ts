import { describe } from 'vitest';
import { needs } from '../set-up/programs.ts';
import { testForwardAuth } from './forward-auth.ts';
import { startTraefik } from './proxies.ts';

needs('traefik');

describe('Traefik', () => {
  testForwardAuth({ start: startTraefik, whenUnreachable: 500, normalizesPaths: true });
});
