import { describe } from 'vitest';
import { tellForwardAuthStory } from '../support/forward-auth-story.ts';
import { documented, filledIn, startGateway } from '../support/gateway-process.ts';

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
          // Around it stands what a distribution's nginx.conf gives, with everything it writes in a folder of the test.
          const kinds = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi'];
          const main = write(
            'nginx.conf',
            [
              // Started by root, it would work as somebody who may not write in the test's folder.
              ...(process.geteuid?.() === 0 ? ['user root;'] : []),
              'daemon off;',
              'worker_processes 1;',
              `pid ${folder}/nginx.pid;`,
              'error_log stderr warn;',
              'events { worker_connections 256; }',
              'http {',
              '  access_log off;',
              ...kinds.map((kind) => `  ${kind}_temp_path ${folder}/${kind};`),
              `  include ${folder}/gatehouse.conf;`,
              '}',
            ].join('\n'),
          );
          return ['-p', folder, '-e', 'stderr', '-c', main];
        },
      }),
  });
});
