import type { ServerResponse } from 'node:http';
import { createServer } from 'node:https';
import { expect, onTestFinished, test } from 'vitest';
import { APP, createCodeFlow } from '../support/code-client.ts';
import { issueServer } from '../support/pki.ts';
import { listenTcp } from '../support/tcp-server.ts';
import { startGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';

const CALLBACK = 'https://agent.example.test/callback';

test.each<[string, (response: ServerResponse) => void]>([
  ['sends nothing', () => {}],
  [
    'sends a head, and then one space after the other',
    (response) => {
      response.writeHead(200, { 'content-type': 'application/json' });
      const timer = setInterval(() => response.write(' '), 50);
      response.once('close', () => clearInterval(timer));
    },
  ],
])(
  'a host that %s is given up after five seconds, with a temporary error, and its connection is closed',
  async (_, respond) => {
    const gateway = await startGateway();
    onTestFinished(() => gateway.close());
    const { pem, keyPem } = await issueServer(gateway.ca);
    const { port, sockets, close } = await listenTcp(
      createServer({ cert: pem, key: keyPem }, (_request, response) => respond(response)),
    );
    onTestFinished(close);
    const { redirectUris: _redirectUris, ...agent } = APP;
    await gateway.reload((settings) => ({
      ...settings,
      integrations: [
        {
          ...agent,
          clientId: 'agents',
          clientDocuments: { hosts: [`127.0.0.1:${port}`], privateAddresses: true, ca: 'ca.pem' },
        },
      ],
      routes: [{ path: '/files/**', requires: 'files:read' }],
    }));
    await using flow = createCodeFlow(gateway);
    const page = await flow.authorize({
      client_id: `https://127.0.0.1:${port}/client.json`,
      redirect_uri: CALLBACK,
    });
    expect([page.status, page.headers['retry-after']], page.text).toEqual([503, '10']);
    await until('the connection is closed', () => sockets.size === 0);
  },
);
