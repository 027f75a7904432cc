import { describe } from 'vitest';
import { needs } from '../set-up/programs.ts';
import { nginxArguments, startFrontProxy } from '../support/front-proxy.ts';
import { fillPlaceholders, readDocumentedConfig } from './documented-configuration.ts';
import { testForwardAuth } from './forward-auth.ts';

needs('nginx');

describe('nginx', () => {
  testForwardAuth({
    challengeOn403: false,
    hasRefusalId: true,
    whenUnreachable: 500,
    start: ({ port, gatehousePort, apiPort, ca }) =>
      startFrontProxy({
        program: 'nginx',
        port,
        arguments: (folder, write) => {
          write(
            'gatehouse.conf',
            fillPlaceholders(readDocumentedConfig('nginx'), {
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
