import { mkdirSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import type { Browser } from 'playwright-core';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openChromium, openWindow } from '../support/chromium.ts';
import { type ConsoleHarness, readGrantId, startConsole } from '../support/console-harness.ts';
import { signInWithBrowser } from '../support/console-states.ts';
import { createCa, type IssuedCertificate, issue, issueServer } from '../support/pki.ts';
import { listenTcp } from '../support/tcp-server.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';

/** The console in a real browser: over TLS with a client certificate, and next to a hostile page on the same host. */
let browser: Browser;
let gateway: TestGateway;
let operator: IssuedCertificate;
let harness: ConsoleHarness;
beforeAll(async () => {
  const ca = await createCa();
  const server = await issueServer(ca);
  operator = await issue(ca, { commonName: 'olivia' });
  [browser, harness, gateway] = await Promise.all([
    openChromium(),
    startConsole(),
    startGateway(
      (settings) => ({
        ...settings,
        admin: {
          port: 0,
          tls: { certificate: 'admin/server.pem', key: 'admin/key.pem', clientCa: 'admin/ca.pem' },
        },
      }),
      (folder) => {
        mkdirSync(join(folder, 'admin'));
        writeFileSync(join(folder, 'admin/server.pem'), server.pem);
        writeFileSync(join(folder, 'admin/key.pem'), server.keyPem, { mode: 0o600 });
        writeFileSync(join(folder, 'admin/ca.pem'), ca.pem);
      },
    ),
  ]);
});
afterAll(async () => {
  await browser?.close();
  await harness?.close();
  await gateway?.close();
});

test('over TLS, an operator signs in with a certificate and revokes; the cookie is a Secure __Host- cookie', async () => {
  const origin = `https://localhost:${gateway.adminPort}`;
  const window = await openWindow(browser, {
    clientCertificates: [{ origin, cert: Buffer.from(operator.pem), key: Buffer.from(operator.keyPem) }],
  });
  const { page, context, consoleErrors } = window;
  try {
    const { access_token: token } = await gateway.grant();
    await page.goto(`${origin}/console`);
    await page.getByRole('button', { name: 'Sign in with this certificate' }).click();
    await page.getByRole('heading', { name: 'Overview' }).waitFor();
    expect(await context.cookies()).toMatchObject([
      {
        name: `__Host-gatehouse-console-${gateway.adminPort}`,
        httpOnly: true,
        secure: true,
        sameSite: 'Strict',
        path: '/',
      },
    ]);
    await page.goto(`${origin}/console/revoke?by=grant&q=${readGrantId(token)}`);
    await page.getByRole('button', { name: 'Revoke' }).click();
    await page.getByText('revoked', { exact: true }).waitFor();
    expect((await gateway.api('/files/a', token)).status).toBe(401);
    expect(consoleErrors).toEqual([]);
  } finally {
    await window.close();
  }
});

test('after signing out, the back button shows nothing of the console', async () => {
  const window = await openWindow(browser);
  const { page } = window;
  try {
    await harness.gateway.grant();
    await signInWithBrowser(harness, page);
    await page.goto(`${harness.url}/console/grants`);
    await page.getByRole('link', { name: 'alice' }).first().waitFor();
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.getByLabel('Admin token').waitFor();
    await page.goBack();
    await page.getByLabel('Admin token').waitFor();
    expect(await page.getByText('alice').count()).toBe(0);
  } finally {
    await window.close();
  }
});

test('a page on another port of the host can neither read, frame nor submit the console', async () => {
  const { url } = harness;
  const pages: Readonly<Record<string, string>> = {
    '/': '<!doctype html><title>hostile</title>',
    '/frame': `<!doctype html><title>hostile</title><iframe src="${url}/console"></iframe>`,
    '/form': `<!doctype html><form method="post" action="${url}/console/sign-out"><input name="form_token" value="x"></form><script>document.forms[0].submit()</script>`,
  };
  const { port, close } = await listenTcp(
    createServer((request, response) => {
      response.setHeader('content-type', 'text/html').end(pages[request.url ?? ''] ?? '');
    }),
  );
  const window = await openWindow(browser);
  const { page } = window;
  try {
    await signInWithBrowser(harness, page);
    await page.goto(`http://127.0.0.1:${port}/`);
    for (const path of ['/console', '/console/console.js', '/metrics'])
      expect([path, await page.evaluate(fetchText, `${url}${path}`)]).toEqual([path, 'not readable']);
    const popup = page.waitForEvent('popup');
    expect(await page.evaluate(openWindowAndRead, `${url}/console`)).not.toContain('Overview');
    await (await popup).getByRole('heading', { name: 'Overview' }).waitFor();
    // The console is in a browsing context group of its own.
    expect(await (await popup).evaluate(() => (globalThis as unknown as { opener: unknown }).opener)).toBeNull();
    await page.goto(`http://127.0.0.1:${port}/frame`);
    const frame = await until('the frame has been blocked', () =>
      page.frames().find((candidate) => candidate.url().startsWith('chrome-error:')),
    );
    expect(await frame.locator('body').textContent()).not.toContain('Sign out');
    await page.goto(`http://127.0.0.1:${port}/form`);
    await page.getByRole('heading', { name: 'Form not accepted' }).waitFor();
    await page.goto(`${url}/console`);
    await page.getByRole('heading', { name: 'Overview' }).waitFor();
  } finally {
    await window.close();
    await close();
  }
});

const fetchText = (url: string): Promise<string> =>
  fetch(url, { credentials: 'include' }).then(
    (response) => response.text(),
    () => 'not readable',
  );

function openWindowAndRead(url: string): string {
  const { open } = globalThis as unknown as {
    readonly open: (url: string) => { readonly document: { readonly title: string } } | null;
  };
  const opened = open(url);
  try {
    return opened?.document.title ?? '';
  } catch {
    // Another origin.
    return '';
  }
}
