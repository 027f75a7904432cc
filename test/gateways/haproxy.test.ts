import { readFileSync } from 'node:fs';
import { describe, expect, onTestFinished, test } from 'vitest';
import { needs } from '../set-up/programs.ts';
import { type FrontProxy, freePort, startFrontProxy } from '../support/front-proxy.ts';
import { rawRequest } from '../support/raw-client.ts';
import { startRecordingUpstream } from '../support/recording-upstream.ts';
import { startGateway } from '../support/test-gateway.ts';
import { fillPlaceholders, luaScript, readDocumentedConfig } from './documented-configuration.ts';
import { type Addresses, testForwardAuth } from './forward-auth.ts';

needs('haproxy');

const start = (
  { port, gatehousePort, apiPort, ca }: Addresses,
  script = readFileSync(luaScript, 'utf8'),
): Promise<FrontProxy> =>
  startFrontProxy({
    program: 'haproxy',
    port,
    arguments: (_, write) => {
      const configuration = fillPlaceholders(readDocumentedConfig('haproxy'), {
        '127.0.0.1:8443': `127.0.0.1:${gatehousePort}`,
        '127.0.0.1:9000': `127.0.0.1:${apiPort}`,
        '127.0.0.1:8080': `127.0.0.1:${port}`,
        'gate.example.test': 'localhost',
        '/etc/gatehouse/ca.pem': ca,
        '/etc/haproxy/gatehouse-check.lua': write('gatehouse-check.lua', script),
      });
      return ['-db', '-f', write('haproxy.cfg', configuration)];
    },
  });

describe('HAProxy', () => {
  testForwardAuth({ challengeOn403: true, whenUnreachable: 503, start });
});

test('if the Lua script fails, no request reaches the API', async () => {
  const gatehouse = await startGateway((settings) => ({ ...settings, trustedProxies: ['127.0.0.1'] }));
  onTestFinished(() => gatehouse.close());
  const api = await startRecordingUpstream();
  onTestFinished(() => api.close());
  const broken = readFileSync(luaScript, 'utf8').replace('core.httpclient()', 'core.no_such_thing()');
  expect(broken).toContain('no_such_thing');
  const places = { gatehousePort: gatehouse.port, apiPort: api.port, ca: `${gatehouse.folder}/ca.pem` };
  const gateway = await start({ port: await freePort(), ...places }, broken);
  onTestFinished(() => gateway.close());
  const request = 'GET /health HTTP/1.1\r\nHost: api.example.test\r\n\r\n';
  expect((await rawRequest(gateway.port, request)).status).toBe(503);
  expect(api.requests).toEqual([]);
});
