import { describe } from 'vitest';
import { startGateway } from '../support/gateway-process.ts';
import { documented, filledIn } from './documented.ts';
import { tellForwardAuthStory } from './forward-auth.ts';

describe('Caddy', () => {
  tellForwardAuthStory({
    challengeOn403: true,
    whenAway: 502,
    start: ({ port, gatehousePort, apiPort, ca }) =>
      startGateway({
        program: 'caddy',
        port,
        arguments: (_, write) => [
          'run',
          '--adapter',
          'caddyfile',
          '--config',
          write(
            'Caddyfile',
            // Caddy's own administration would listen on a fixed port.
            `{\n\tadmin off\n}\n${filledIn(documented('caddyfile'), {
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
