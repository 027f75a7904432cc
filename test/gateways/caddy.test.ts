import { describe } from 'vitest';
import { needs } from '../set-up/programs.ts';
import { startFrontProxy } from '../support/front-proxy.ts';
import { fillPlaceholders, readDocumentedConfig } from './documented-configuration.ts';
import { testForwardAuth } from './forward-auth.ts';

needs('caddy');

describe('Caddy', () => {
  testForwardAuth({
    challengeOn403: true,
    whenUnreachable: 502,
    start: ({ port, gatehousePort, apiPort, ca }) =>
      startFrontProxy({
        program: 'caddy',
        port,
        arguments: (_, write) => [
          'run',
          '--adapter',
          'caddyfile',
          '--config',
          write(
            'Caddyfile',
            // Caddy's admin API would listen on a fixed port.
            `{\n\tadmin off\n}\n${fillPlaceholders(readDocumentedConfig('caddyfile'), {
              '127.0.0.1:8443': `127.0.0.1:${gatehousePort}`,
              '127.0.0.1:9000': `127.0.0.1:${apiPort}`,
              ':8080': `:${port}`,
              'gate.example.test': 'localhost',
              '/etc/gatehouse/ca.pem': ca,
            })}`,
          ),
        ],
      }),
  });
});
