import { join } from 'node:path';
import { expect, test } from 'vitest';
import { loadText, loadValid, MINIMAL_CONFIG, SAMPLE } from '../support/configuration.ts';

test('the sample configuration loads with the documented meaning', () => {
  const result = loadText(SAMPLE);
  expect(result).toMatchObject({
    ok: true,
    settings: {
      publicUrl: 'https://localhost:8443',
      listen: { port: 8443, workers: 1, tls: { minVersion: 'TLSv1.2', askCertificate: 'always' } },
      tokens: { accessLifetime: 3_600, grantLifetime: 90 * 86_400, refresh: { retryWindow: 10 } },
      limits: { body: 10 * 1_048_576, headers: 16_384, headerTimeout: 10 },
      shutdown: { preStop: 5, drain: 30 },
      upstreams: { default: { targets: ['http://127.0.0.1:9000'], timeouts: { connect: 2 } } },
    },
  });
  if (!result.ok) return;
  expect(result.settings.listen.tls?.certificate).toBe(join(result.folder, 'pki/server.pem'));
  expect(result.settings.directories['staff']?.users[0]?.name).toBe('alice');
  expect(result.settings.integrations[0]?.access).toHaveLength(3);
  expect(result.settings.routes.map(({ path }) => path)).toEqual(['/health', '/files/**', '/reports/**']);
  expect(result.files[0]).toBe(join(result.folder, 'gatehouse.yaml'));
});

test('the minimal configuration has safe defaults', () => {
  expect(loadValid(MINIMAL_CONFIG)).toMatchObject({
    listen: { host: '127.0.0.1', port: 8443 },
    admin: { host: '127.0.0.1', port: 9443 },
    service: { paths: ['/authsvc'] },
    log: { level: 'info', format: 'auto' },
  });
});
