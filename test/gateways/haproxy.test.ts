import { readFileSync } from 'node:fs';
import { describe, expect, onTestFinished, test } from 'vitest';
import { needs } from '../set-up/programs.ts';
import { freePort } from '../support/front-proxy.ts';
import { rawRequest } from '../support/raw-client.ts';
import { startRecordingUpstream } from '../support/recording-upstream.ts';
import { startGateway } from '../support/test-gateway.ts';
import { luaScript } from './documented-configuration.ts';
import { testForwardAuth } from './forward-auth.ts';
import { startHaproxy } from './proxies.ts';

needs('haproxy');

describe('HAProxy', () => {
  testForwardAuth({ start: startHaproxy, whenUnreachable: 503 });
});

test('if the Lua script fails, no request reaches the API', async () => {
  const gatehouse = await startGateway((settings) => ({ ...settings, trustedProxies: ['127.0.0.1'] }));
  onTestFinished(() => gatehouse.close());
  const api = await startRecordingUpstream();
  onTestFinished(() => api.close());
  const broken = readFileSync(luaScript, 'utf8').replace('core.httpclient()', 'core.no_such_thing()');
  expect(broken).toContain('no_such_thing');
  const places = { gatehousePort: gatehouse.port, apiPort: api.port, ca: `${gatehouse.folder}/ca.pem` };
  const gateway = await startHaproxy({ port: await freePort(), ...places }, broken);
  onTestFinished(() => gateway.close());
  const request = 'GET /health HTTP/1.1\r\nHost: api.example.test\r\n\r\n';
  expect((await rawRequest(gateway.port, request)).status).toBe(503);
  expect(api.requests).toEqual([]);
});
