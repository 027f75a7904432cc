import { describe } from 'vitest';
import { getPythonProgram, needs } from '../set-up/programs.ts';
import type { FrontProxyProgram } from '../support/front-proxy.ts';
import type { TestGateway } from '../support/test-gateway.ts';
import { fillPlaceholders, readDocumentedConfig } from './documented-configuration.ts';
import { testForwardAuth } from './forward-auth.ts';
import { testClientCertificates } from './forwarded-certificates.ts';
import { startTraefik } from './proxies.ts';

needs('traefik');

describe('Traefik', () => {
  testForwardAuth({ start: startTraefik, whenUnreachable: 500, normalizesPaths: true });
});

const withCertificates = (port: number, gateway: TestGateway): Omit<FrontProxyProgram, 'port'> => ({
  program: getPythonProgram('traefik'),
  arguments: (_folder, write) => {
    const dynamic = fillPlaceholders(readDocumentedConfig('yaml traefik-client-certificates'), {
      '127.0.0.1:8443': `127.0.0.1:${gateway.port}`,
      'gate.example.test': 'localhost',
      '/etc/traefik/tls': `${gateway.folder}/front`,
      '/etc/gatehouse/ca.pem': `${gateway.folder}/ca.pem`,
      websecure: 'web',
    });
    const main = fillPlaceholders(readDocumentedConfig('yaml traefik-static'), {
      '127.0.0.1:8080': `127.0.0.1:${port}`,
      '/etc/traefik/gatehouse.yaml': write('gatehouse.yaml', dynamic),
    });
    return ['--configFile', write('traefik.yaml', main)];
  },
});

describe('Traefik that terminates TLS', () => {
  // It removes the spelling with underscores.
  testClientCertificates({
    forwardedHeader: 'x-forwarded-tls-client-cert',
    program: withCertificates,
    passedOn: /[.]/,
  });
});
