import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Page } from 'playwright-core';
import { type ConsoleHarness, readGrantId, startConsole } from './console-harness.ts';
import { createForeignKey, formatKeySet } from './foreign-issuer.ts';
import { waitForNavigation } from './page-states.ts';
import { until } from './until.ts';

/** A console with traffic: grants, refusals of several kinds, revocations. */
export async function startBusyConsole(): Promise<ConsoleHarness> {
  const harness = await startConsole((settings) => ({
    ...settings,
    integrations: [
      ...(settings.integrations ?? []),
      {
        clientId: 'backup',
        name: 'Nightly backup',
        scope: 'files:read',
        access: [{ groups: ['operators'] }],
      },
    ],
  }));
  const keySet = formatKeySet(await createForeignKey('ES256', 'k1'));
  writeFileSync(join(harness.gateway.folder, 'partner.jwks'), keySet);
  await addTraffic(harness);
  return harness;
}

/** Half an hour of uneven load, by the clock of the gateway. */
export async function addTraffic(harness: ConsoleHarness, steps = 40): Promise<void> {
  const { gateway } = harness;
  const operator = await harness.signedIn();
  const { access_token: alice } = await gateway.grant();
  const { access_token: bob } = await gateway.grant({ user: 'bob', scope: 'files:read' });
  for (let step = 0; step < steps; step += 1) {
    const load = 6 + Math.round(4 * Math.sin(step / 4)) + (step % 5);
    const calls = Array.from({ length: load }, (_, at) => gateway.api(`/files/${at}`, alice));
    if (step % 3 === 0) calls.push(gateway.api('/reports/2026/q3', bob, { method: 'POST' }));
    if (step % 7 === 0) calls.push(gateway.api('/files/1'), gateway.api('/nothing/here', alice));
    if (step % 4 === 0) calls.push(gateway.api('/files/1', 'not-a-token'));
    await Promise.all(calls);
    if (step % 6 === 0) await gateway.grant({ clientId: 'other-app' });
    if (step % 10 === 9) {
      const { access_token: ended } = await gateway.grant({ clientId: 'backup' });
      await gateway.api('/authsvc/Revoke/Token', ended);
    }
    gateway.clock.advance(20);
    await operator.get('/console');
  }
  const { refresh_token } = await gateway.grant();
  await gateway.refresh(refresh_token);
}

export interface ConsoleState {
  readonly heading: string | RegExp;
  reach(harness: ConsoleHarness, page: Page): Promise<void>;
  /** Restores the gateway for other states. */
  leave?(harness: ConsoleHarness): Promise<void>;
}

export async function signInWithBrowser(harness: ConsoleHarness, page: Page, token = harness.token): Promise<void> {
  await leaveConsole(page);
  await page.goto(`${harness.url}/console`);
  await page.getByLabel('Admin token').fill(token);
  // The script of the console runs before `load`.
  await waitForNavigation(page, () => page.getByRole('button', { name: 'Sign in' }).click());
  await page.getByRole('heading', { name: 'Overview' }).waitFor();
}

export async function leaveConsole(page: Page): Promise<void> {
  await page.goto('about:blank');
  await page.context().clearCookies();
}

const open =
  (path: string) =>
  async (harness: ConsoleHarness, page: Page): Promise<void> => {
    await signInWithBrowser(harness, page);
    await page.goto(`${harness.url}/console${path}`);
  };

/** A rejected configuration, a setting that needs a restart, and trusted issuers of which one is unreachable. */
async function causeProblems({ gateway }: ConsoleHarness): Promise<void> {
  await gateway.reload((settings) => ({
    ...settings,
    limits: { ...settings.limits, streams: 50 },
    trustedIssuers: {
      // Nothing listens there.
      corp: { issuer: 'http://127.0.0.1:1', audience: 'files-api' },
      partner: { issuer: 'https://partner.example', audience: 'files-api', jwksFile: 'partner.jwks' },
    },
  }));
  gateway.server.rejectReload([
    'upstreams.default.url: expected a URL with http or https (line 12)',
    `routes[3]["<b>${'very-long-name-'.repeat(20)}</b>"]: unknown setting (line 48)`,
    'listen.tls.certificate: /etc/gatehouse/tls/server.pem cannot be read (ENOENT)',
  ]);
  await until('the issuer is unavailable', () =>
    gateway.server.getStatus().issuers.some(({ state }) => state === 'unavailable'),
  );
}

const clearProblems = ({ gateway }: ConsoleHarness): Promise<void> =>
  gateway.reload((settings) => ({
    ...settings,
    trustedIssuers: {},
    // The default.
    limits: { ...settings.limits, streams: 100 },
  }));

/** Every page, and the states that look different. */
export const CONSOLE_STATES: Readonly<Record<string, ConsoleState>> = {
  'sign-in': { heading: 'Sign in', reach: async ({ url }, page) => void (await page.goto(`${url}/console`)) },
  'sign-in-wrong': {
    heading: 'Sign in',
    async reach({ url }, page) {
      await page.goto(`${url}/console`);
      await page.getByLabel('Admin token').fill('not-the-admin-token');
      await page.getByRole('button', { name: 'Sign in' }).click();
      await page.getByRole('alert').waitFor();
    },
  },
  overview: { heading: 'Overview', reach: open('') },
  'overview-viewer': {
    heading: 'Overview',
    reach: (harness, page) => signInWithBrowser(harness, page, harness.readOnlyToken),
  },
  grants: { heading: 'Grants', reach: open('/grants?by=name&q=alice') },
  'grants-none': { heading: 'Grants', reach: open('/grants?by=name&q=zoe') },
  'grants-problem': { heading: 'Grants', reach: open('/grants?by=serial&q=zoe') },
  grant: {
    heading: /^Grant of/,
    async reach(harness, page) {
      const id = readGrantId((await harness.gateway.grant()).access_token);
      await open(`/grant?id=${id}`)(harness, page);
    },
  },
  revoke: {
    heading: 'Revoke this grant?',
    async reach(harness, page) {
      const id = readGrantId((await harness.gateway.grant()).access_token);
      await open(`/revoke?by=grant&q=${id}`)(harness, page);
    },
  },
  'revoke-all': {
    heading: 'Revoke all grants of this client?',
    reach: open('/revoke?by=client&q=report-runner'),
  },
  refusals: { heading: 'Recent refusals', reach: open('/refusals') },
  refusal: {
    heading: /^POST \/reports/,
    async reach(harness, page) {
      await open('/refusals?q=insufficient_scope')(harness, page);
      await waitForNavigation(page, () => page.locator('.rows a').first().click());
    },
  },
  explain: {
    heading: 'Explain a request',
    reach: open('/explain?method=POST&path=/reports/1&scope=files:read'),
  },
  'explain-empty': { heading: 'Explain a request', reach: open('/explain') },
  configuration: { heading: 'Configuration in use', reach: open('/configuration') },
  'overview-problems': {
    heading: 'Overview',
    async reach(harness, page) {
      await causeProblems(harness);
      await open('')(harness, page);
      await page.getByRole('heading', { name: 'The changed configuration was rejected' }).waitFor();
      await page.getByRole('heading', { name: 'Keys cannot be fetched' }).waitFor();
    },
    leave: clearProblems,
  },
  'configuration-problems': {
    heading: 'Configuration in use',
    async reach(harness, page) {
      await causeProblems(harness);
      await open('/configuration')(harness, page);
      await page.getByRole('heading', { name: 'The changed configuration was rejected' }).waitFor();
    },
    leave: clearProblems,
  },
  audit: { heading: 'Recent audit events', reach: open('/audit') },
  'not-found': { heading: 'Page not found', reach: open('/nowhere') },
};
