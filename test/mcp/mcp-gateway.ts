import { createServer } from 'node:http';
import { createServer as createHttpsServer } from 'node:https';
import type { Browser, Page } from 'playwright-core';
import { openChromium, openWindow } from '../support/chromium.ts';
import { type ClientGateway, startClientGateway } from '../support/client-gateway.ts';
import { clickButton, waitForNavigation } from '../support/page-states.ts';
import { issueServer } from '../support/pki.ts';
import { listenTcp } from '../support/tcp-server.ts';
import { PASSWORD } from '../support/test-gateway.ts';

export const REGISTERED = 'mcp-client';
export const SCOPE = 'mcp:use';

/** gatehouse in front of an MCP server, a real browser, and a client document on a server of its own. */
export interface McpGateway {
  readonly at: ClientGateway;
  /** The URL of the MCP server, as clients know it. */
  readonly url: string;
  /** Where clients receive the code, on a free port. */
  readonly redirectUri: string;
  /** The URL of a client ID metadata document. */
  readonly documentUrl: string;
  /** Opens the URL in Chromium, signs in and approves. Returns the URL of the response, and the text of the approval page. */
  authorize(url: string): Promise<{ readonly response: URL; readonly page: string }>;
  /**
   * In Chromium: the user opens their list of approved apps and revokes the first one. Resolves when the page confirms it, with the time of
   * the click.
   */
  revokeInBrowser(): Promise<number>;
  close(): Promise<void>;
}

export async function startMcpGateway(serverPort: number): Promise<McpGateway> {
  const app = { scope: SCOPE, grants: ['code' as const], access: [{ groups: ['operators'] }] };
  const at = await startClientGateway((settings) => ({
    ...settings,
    integrations: [{ ...app, clientId: REGISTERED, redirectUris: ['http://127.0.0.1/callback'] }],
    upstreams: { default: { url: `http://127.0.0.1:${serverPort}` } },
    routes: [{ path: '/mcp', requires: SCOPE }],
  }));
  const { pem, keyPem } = await issueServer(at.gateway.ca);
  const redirectUris = ['http://127.0.0.1/callback'];
  const documents = await listenTcp(
    createHttpsServer({ cert: pem, key: keyPem }, (_request, response) => {
      response.setHeader('content-type', 'application/json');
      const document = { client_id: documentUrl, client_name: 'Test agent', redirect_uris: redirectUris };
      response.end(JSON.stringify({ ...document, token_endpoint_auth_method: 'none' }));
    }),
  );
  const documentUrl = `https://localhost:${documents.port}/client.json`;
  await at.gateway.reload((settings) => ({
    ...settings,
    integrations: [
      ...(settings.integrations ?? []),
      {
        ...app,
        clientId: 'agents',
        clientDocuments: { hosts: [`localhost:${documents.port}`], privateAddresses: true, ca: 'ca.pem' },
      },
    ],
  }));
  const callback = await listenTcp(createServer((_request, response) => response.end('You can close this page.')));
  const redirectUri = `http://127.0.0.1:${callback.port}/callback`;
  let browser: Browser | undefined;

  const withPage = async <T>(path: string, use: (page: Page) => Promise<T>): Promise<T> => {
    browser ??= await openChromium();
    const window = await openWindow(browser);
    try {
      await window.page.goto(path);
      await window.page.getByLabel('Username').fill('alice');
      await window.page.getByLabel('Password').fill(PASSWORD);
      await clickButton(window.page, 'Sign in');
      return await use(window.page);
    } finally {
      await window.close();
    }
  };
  return {
    at,
    url: `${at.url}/mcp`,
    redirectUri,
    documentUrl,
    authorize: (url) =>
      withPage(url, async (page) => {
        await page.waitForURL(/\/review\?request=/);
        const text = (await page.locator('main').textContent()) ?? '';
        await page.getByRole('button', { name: 'Approve' }).click();
        await page.waitForURL(`${redirectUri}?**`);
        return { response: new URL(page.url()), page: text };
      }),
    revokeInBrowser: () =>
      withPage(`${at.url}/authsvc/device/grants`, async (page) => {
        const link = page.getByRole('link', { name: /^Revoke access for/ }).first();
        await waitForNavigation(page, () => link.click());
        const clickedAt = performance.now();
        await clickButton(page, 'Revoke');
        await page.getByText('was revoked').waitFor();
        return clickedAt;
      }),
    async close() {
      await browser?.close();
      await callback.close();
      await documents.close();
      await at.close();
    },
  };
}
