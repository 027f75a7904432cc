import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type House, openHouse } from '../support/house.ts';
import { issue } from '../support/pki.ts';
import { until } from '../support/serve-process.ts';

let house: House;
beforeAll(async () => {
  house = await openHouse((settings) => ({
    ...settings,
    integrations: [
      ...(settings.integrations ?? []),
      {
        clientId: 'browser-only',
        scope: 'files:read',
        grants: ['device'],
        access: [{ groups: ['operators'] }],
      },
      { clientId: 'readers-only', scope: 'files:read', access: [{ groups: ['readers'] }] },
      {
        clientId: 'readers-by-browser',
        scope: 'files:read',
        access: [{ groups: ['readers'] }, { groups: ['operators'], grants: ['device'] }],
      },
    ],
  }));
});
afterAll(() => house.close());

describe('C17: a sound certificate is not yet a grant', () => {
  test.each([
    [
      'an integration without the certificate grant',
      'browser-only',
      'files:read',
      400,
      'unauthorized_client',
    ],
    ['an integration whose list has others', 'readers-only', 'files:read', 400, 'unauthorized_client'],
    [
      'a list that lets them in by the browser only',
      'readers-by-browser',
      'files:read',
      400,
      'unauthorized_client',
    ],
    ['a scope beyond the integration', 'report-runner', 'files:delete', 400, 'invalid_scope'],
    ['an unknown integration', 'nobody', 'files:read', 400, 'invalid_grant'],
    ['all is well', 'report-runner', 'files:read', 200, undefined],
  ])('%s', async (_, clientId, scope, status, error) => {
    const reply = await house.post(
      '/Authorize/Certificate',
      { client_id: clientId, scope },
      { as: house.people.alice },
    );
    expect([reply.status, reply.json['Error']]).toEqual([status, error]);
  });

  test('a scope beyond the own entries of the person', async () => {
    const asked = { client_id: 'report-runner', scope: 'reports:read' };
    const reply = await house.post('/Authorize/Certificate', asked, { as: house.people.bob });
    expect([reply.status, reply.json['Error']]).toEqual([400, 'invalid_scope']);
  });

  test('a name that is in no directory, whatever integration is asked for', async () => {
    const stranger = await issue(house.ca, { commonName: 'mallory' });
    for (const clientId of ['report-runner', 'nobody']) {
      const reply = await house.post(
        '/Authorize/Certificate',
        { client_id: clientId, scope: 'files:read' },
        { as: stranger },
      );
      expect([reply.status, reply.json['Error']]).toEqual([401, 'access_denied']);
      expect(reply.headers['www-authenticate']).toBeDefined();
    }
  });
});

test('C20: connections that never finish their handshake are closed, and others are served meanwhile', async () => {
  const open = async (): Promise<Socket> => {
    const socket = connect(house.port, '127.0.0.1').on('error', () => {});
    await once(socket, 'connect');
    return socket;
  };
  const silent = await Promise.all(Array.from({ length: 400 }, open));
  // Half of them begin a handshake and stop.
  for (const socket of silent.slice(200)) socket.write(Buffer.from([0x16, 0x03, 0x01, 0x02, 0x00, 0x01]));
  for (let served = 0; served < 20; served += 1) expect((await house.api('/health')).status).toBe(200);
  const isClosed = (socket: Socket): boolean => socket.readableEnded || socket.destroyed;
  for (const socket of silent) socket.resume();
  await until('all are closed by the server', () => silent.every(isClosed), 20);
  expect((await house.api('/health')).status).toBe(200);
});
