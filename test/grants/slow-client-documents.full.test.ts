import { expect, test } from 'vitest';
import { until } from '../support/until.ts';
import { AGENT_CALLBACK, createAgents, type Respond, useDocumentGateway } from './document-gateway.ts';

const at = useDocumentGateway((hosts) => [
  createAgents('agents', { hosts: [...hosts], privateAddresses: true, ca: 'ca.pem' }),
]);

test.each<[string, Respond]>([
  ['sends nothing', () => {}],
  [
    'sends a head, and then one space after the other',
    (_request, response) => {
      response.writeHead(200, { 'content-type': 'application/json' });
      const timer = setInterval(() => response.write(' '), 50);
      response.once('close', () => clearInterval(timer));
    },
  ],
])(
  'a host that %s is given up after five seconds, with a temporary error, and its connection is closed',
  async (_, respond) => {
    at.respond = respond;
    const page = await at.flow.authorize({ client_id: at.clientId, redirect_uri: AGENT_CALLBACK });
    expect([page.status, page.headers['retry-after']], page.text).toEqual([503, '10']);
    await until('the connection is closed', async () => (await at.countConnections()) === 0);
  },
);
