import { afterAll, afterEach, beforeAll, expect } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { APP, type CodeFlow, createCodeFlow, type Fields, type Pkce, withCodeClients } from '../support/code-client.ts';
import { createForeignKey } from '../support/foreign-issuer.ts';
import type { Page } from '../support/form-browser.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';

/** The key of the client `signing`. */
export const SIGNING_KEY = await createForeignKey();

export const getParameters = (url: URL): Fields => Object.fromEntries(url.searchParams);
/** A URL without its query. */
export const getBase = (url: URL): string => url.href.slice(0, url.href.indexOf('?'));

/** A page, and no redirect to anywhere but the pages. */
export const expectInvalidRequestPage = ({ status, redirectTo, headers }: Page, what: string): void => {
  expect([status, redirectTo], what).toEqual([400, undefined]);
  expect(headers, what).toMatchObject({ 'cache-control': 'no-store', 'referrer-policy': 'no-referrer' });
};

/** A gateway with clients of the authorization code flow, for the tests of one file. */
export interface CodeGateway {
  readonly gateway: TestGateway;
  /** A new app and browser. */
  readonly start: (pkce?: Pkce) => CodeFlow;
}

export function useCodeGateway(change = withMoreClients): CodeGateway {
  let gateway: TestGateway;
  const flows: CodeFlow[] = [];
  beforeAll(async () => {
    gateway = await startGateway(change);
  });
  afterAll(() => gateway?.close());
  afterEach(async () => {
    for (const flow of flows.splice(0)) await flow[Symbol.asyncDispose]();
    gateway.clearLog();
    // All flows have one client address, which may sign in 20 times, then every 3 s.
    gateway.clock.advance(60);
  });
  return {
    get gateway() {
      return gateway;
    },
    start: (pkce) => {
      const flow = createCodeFlow(gateway, pkce);
      flows.push(flow);
      return flow;
    },
  };
}

function withMoreClients(settings: SettingsInput): SettingsInput {
  return {
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
  };
}
