import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe } from 'vitest';
import { needs } from '../set-up/programs.ts';
import { type FrontProxyProgram, nginxArguments } from '../support/front-proxy.ts';
import type { TestGateway } from '../support/test-gateway.ts';
import { fillPlaceholders, readDocumentedConfig } from './documented-configuration.ts';
import { testClientCertificates } from './forwarded-certificates.ts';

needs('nginx', 'haproxy');

/** Front proxies that terminate TLS, as in docs/forward-auth.md, and misconfigured to forward other header spellings. */
const nginx =
  (careless: boolean) =>
  (port: number, gateway: TestGateway): Omit<FrontProxyProgram, 'port'> => ({
    program: 'nginx',
    arguments: (folder, write) => {
      const front = fillPlaceholders(readDocumentedConfig('nginx client-certificates'), {
        '127.0.0.1:9443': `127.0.0.1:${port}`,
        '127.0.0.1:8443': `127.0.0.1:${gateway.port}`,
        'gate.example.test': 'localhost',
        '/etc/nginx/tls': `${gateway.folder}/front`,
        '/etc/gatehouse/ca.pem': `${gateway.folder}/ca.pem`,
        '/etc/gatehouse/issuers.pem': `${gateway.folder}/ca.pem`,
      });
      write('front.conf', front);
      return nginxArguments(folder, write, [
        '  access_log off;',
        ...(careless ? ['  underscores_in_headers on;', '  ignore_invalid_headers off;'] : []),
        `  include ${folder}/front.conf;`,
      ]);
    },
  });
const haproxy =
  (careless: boolean) =>
  (port: number, gateway: TestGateway): Omit<FrontProxyProgram, 'port'> => ({
    program: 'haproxy',
    arguments: (_folder, write) => {
      const both = ['server.pem', 'server-key.pem'].map((name) =>
        readFileSync(join(gateway.folder, 'front', name), 'utf8'),
      );
      const snippet = readDocumentedConfig('haproxy client-certificates');
      const configuration = careless
        ? fillPlaceholders(snippet, { '^client[^a-z0-9]cert -m reg': 'client-cert' })
        : snippet;
      const front = fillPlaceholders(configuration, {
        '127.0.0.1:9443': `127.0.0.1:${port}`,
        '127.0.0.1:8443': `127.0.0.1:${gateway.port}`,
        'gate.example.test': 'localhost',
        '/etc/haproxy/server.pem': write('server.pem', both.join('')),
        '/etc/gatehouse/ca.pem': `${gateway.folder}/ca.pem`,
        '/etc/gatehouse/issuers.pem': `${gateway.folder}/ca.pem`,
      });
      const defaults = 'defaults\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n';
      return ['-db', '-f', write('haproxy.cfg', defaults + front)];
    },
  });

describe.each([
  ['nginx', { forwardedHeader: 'x-ssl-client-cert', program: nginx(false) }],
  [
    'nginx that passes other spellings on',
    { forwardedHeader: 'x-ssl-client-cert', program: nginx(true), passedOn: /[_.]/ },
  ],
  ['HAProxy', { forwardedHeader: 'client-cert', program: haproxy(false) }],
  [
    'HAProxy that passes other spellings on',
    { forwardedHeader: 'client-cert', program: haproxy(true), passedOn: /[_.]/ },
  ],
] as const)('%s', (_name, proxy) => testClientCertificates(proxy));
