import { describe } from 'vitest';
import { nginxArguments, startGateway } from '../support/gateway-process.ts';
import { documented, filledIn } from './documented.ts';
import { tellForwardAuthStory } from './forward-auth.ts';

describe('nginx', () => {
  tellForwardAuthStory({
    challengeOn403: false,
    whenAway: 500,
    start: ({ port, gatehousePort, apiPort, ca }) =>
      startGateway({
        program: 'nginx',
        port,
        arguments: (folder, write) => {
          write(
            'gatehouse.conf',
            filledIn(documented('nginx'), {
              '127.0.0.1:8443': `127.0.0.1:${gatehousePort}`,
              '127.0.0.1:9000': `127.0.0.1:${apiPort}`,
              '127.0.0.1:8080': `127.0.0.1:${port}`,
              'gate.example.test': 'localhost',
              '/etc/gatehouse/ca.pem': ca,
            }),
          );
          return nginxArguments(folder, write, ['  access_log off;', `  include ${folder}/gatehouse.conf;`]);
        },
      }),
  });
});
