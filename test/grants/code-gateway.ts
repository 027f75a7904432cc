import { afterAll, afterEach, beforeAll } from 'vitest';
import { APP, type CodeFlow, createCodeFlow, type Fields, withCodeClients } from '../support/code-client.ts';
import { createForeignKey } from '../support/foreign-issuer.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';

/** The key of the client `signing`. */
export const SIGNING_KEY = await createForeignKey();

export const getParameters = (url: URL): Fields => Object.fromEntries(url.searchParams);
/** A URL without its query. */
export const getBase = (url: URL): string => url.href.slice(0, url.href.indexOf('?'));

/** A gateway with clients of the authorization code flow, for the tests of one file. */
export interface CodeGateway {
  readonly gateway: TestGateway;
  /** A new app and browser. */
  start(): CodeFlow;
}

export function useCodeGateway(): CodeGateway {
  let gateway: TestGateway;
  const flows: CodeFlow[] = [];
  beforeAll(async () => {
    gateway = await startGateway((settings) => ({
      ...withCodeClients(settings),
      integrations: [
        ...(withCodeClients(settings).integrations ?? []),
        { ...APP, clientId: 'signing', jwks: { keys: [SIGNING_KEY.jwk as Record<string, string>] } },
        { ...APP, clientId: 'second', redirectUris: ['https://second.example.test/callback'] },
        {
          ...APP,
          clientId: 'several',
          audience: ['https://api.example.test', 'https://other.example.test'],
        },
        { ...APP, clientId: 'partial', partialScope: true },
        { ...APP, clientId: 'devices-only', grants: ['device'], redirectUris: [] },
        { ...APP, clientId: 'no-users', access: [{ groups: ['operators'], grants: ['device'] }] },
      ],
      introspection: { access: [{ groups: ['operators'] }] },
    }));
  });
  afterAll(() => gateway?.close());
  afterEach(async () => {
    for (const flow of flows.splice(0)) await flow[Symbol.asyncDispose]();
    gateway.clearLog();
  });
  return {
    get gateway() {
      return gateway;
    },
    start() {
      const flow = createCodeFlow(gateway);
      flows.push(flow);
      return flow;
    },
  };
}
