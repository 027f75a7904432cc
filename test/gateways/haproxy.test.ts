import { readFileSync } from 'node:fs';
import { describe, expect, onTestFinished, test } from 'vitest';
import { freePort, type GatewayProcess, startGateway } from '../support/gateway-process.ts';
import { openHouse } from '../support/house.ts';
import { rawRequest } from '../support/raw-client.ts';
import { recordingUpstream } from '../support/recording-upstream.ts';
import { documented, filledIn, luaScript } from './documented.ts';
import { type Places, tellForwardAuthStory } from './forward-auth.ts';

const start = (
  { port, gatehousePort, apiPort, ca }: Places,
  script = readFileSync(luaScript, 'utf8'),
): Promise<GatewayProcess> =>
  startGateway({
    program: 'haproxy',
    port,
    arguments: (_, write) => {
      const configuration = filledIn(documented('haproxy'), {
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
  tellForwardAuthStory({ challengeOn403: true, whenAway: 503, start });
});

test('if the script itself fails, no request passes', async () => {
  const house = await openHouse((settings) => ({ ...settings, trustedProxies: ['127.0.0.1'] }));
  onTestFinished(() => house.close());
  const api = await recordingUpstream();
  onTestFinished(() => api.close());
  const broken = readFileSync(luaScript, 'utf8').replace('core.httpclient()', 'core.no_such_thing()');
  expect(broken).toContain('no_such_thing');
  const places = { gatehousePort: house.port, apiPort: api.port, ca: `${house.folder}/ca.pem` };
  const gateway = await start({ port: await freePort(), ...places }, broken);
  onTestFinished(() => gateway.close());
  const asked = 'GET /health HTTP/1.1\r\nHost: api.example.test\r\n\r\n';
  expect((await rawRequest(gateway.port, asked)).status).toBe(503);
  expect(api.requests).toEqual([]);
});
