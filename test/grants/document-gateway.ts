import { once } from 'node:events';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { createServer, type Server } from 'node:https';
import type { AddressInfo } from 'node:net';
import { promisify } from 'node:util';
import { afterAll, afterEach, beforeAll, beforeEach } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { APP, type CodeFlow, createCodeFlow, type Fields } from '../support/code-client.ts';
import { issueServer } from '../support/pki.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';

type Integration = NonNullable<SettingsInput['integrations']>[number];
export type Respond = (request: IncomingMessage, response: ServerResponse) => unknown;

export const AGENT_CALLBACK = 'https://agent.example.test/callback';

const { redirectUris: _redirectUris, ...AGENT } = APP;
/** The integration of clients that are not registered. */
export const createAgents = (
  clientId: string,
  clientDocuments: NonNullable<Integration['clientDocuments']>,
): Integration => ({ ...AGENT, clientId, clientDocuments });

const getUrl = ({ headers, url }: IncomingMessage): string => `https://${headers.host}${url}`;

export const createDocument = (clientId: string, changes: object = {}) => ({
  client_id: clientId,
  client_name: 'Friendly Agent',
  redirect_uris: [AGENT_CALLBACK, 'http://127.0.0.1/callback'],
  token_endpoint_auth_method: 'none',
  ...changes,
});

/** Responds to every URL with the document of the client with that URL. */
export const sendDocument =
  (changes: object = {}, headers: Fields = {}): Respond =>
  (request, response) =>
    response
      .writeHead(200, { 'content-type': 'application/json', ...headers })
      .end(JSON.stringify(createDocument(getUrl(request), changes)));

/** A gateway and the host of client metadata documents, for the tests of one file. */
export interface DocumentGateway {
  readonly gateway: TestGateway;
  /** Two names of the same server. */
  readonly hosts: readonly [string, string];
  /** An app and browser, new in each test. */
  readonly flow: CodeFlow;
  /** The URL of a document, new in each test. */
  readonly clientId: string;
  /** The URLs that were requested in this test, and the headers. */
  readonly requests: readonly { readonly url: string; readonly headers: IncomingMessage['headers'] }[];
  /** `sendDocument()` at the beginning of each test. */
  respond: Respond;
  readonly countConnections: () => Promise<number>;
}

export function useDocumentGateway(
  createIntegrations: (hosts: DocumentGateway['hosts']) => Integration[],
): DocumentGateway {
  let gateway: TestGateway;
  let server: Server;
  let hosts: DocumentGateway['hosts'];
  let flow: CodeFlow;
  let count = 0;
  let requests: DocumentGateway['requests'][number][] = [];
  const shared = { respond: sendDocument() };
  beforeAll(async () => {
    gateway = await startGateway();
    const { pem, keyPem } = await issueServer(gateway.ca);
    server = createServer({ cert: pem, key: keyPem }, (request, response) => {
      requests.push({ url: getUrl(request), headers: request.headers });
      shared.respond(request, response);
    });
    await once(server.listen(0), 'listening');
    const { port } = server.address() as AddressInfo;
    hosts = [`localhost:${port}`, `127.0.0.1:${port}`];
    await gateway.reload((settings) => ({
      ...settings,
      integrations: createIntegrations(hosts),
      routes: [{ path: '/files/**', requires: 'files:read' }],
    }));
  });
  afterAll(async () => {
    await gateway?.close();
    server?.close();
    server?.closeAllConnections();
  });
  beforeEach(() => {
    count += 1;
    requests = [];
    shared.respond = sendDocument();
    flow = createCodeFlow(gateway);
    gateway.clearLog();
  });
  afterEach(() => flow[Symbol.asyncDispose]());
  return {
    get gateway() {
      return gateway;
    },
    get hosts() {
      return hosts;
    },
    get flow() {
      return flow;
    },
    get clientId() {
      return `https://${hosts[0]}/agents/${count}.json`;
    },
    get requests() {
      return requests;
    },
    get respond() {
      return shared.respond;
    },
    set respond(respond: Respond) {
      shared.respond = respond;
    },
    countConnections: () => promisify(server.getConnections.bind(server))(),
  };
}
