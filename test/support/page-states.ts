import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Page } from 'playwright-core';
import { type Grant, keepGrantUntil } from '../../src/domain/grant.ts';
import {
  type Asked,
  BASE,
  type ConfirmPages,
  identityOf,
  openConfirmPages,
  type PagesBrowser,
  storeUnavailable,
} from './confirm-pages.ts';
import { PASSWORD } from './house.ts';

const LOGO = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 48 48"><rect width="48" height="48" rx="11" fill="#0f766e"/><path d="M13 34V23a11 11 0 0 1 22 0v11M9 34h30M24 34V19" fill="none" stroke="#fff" stroke-width="3.4" stroke-linecap="round"/></svg>`;

/** The pages with everything set that can be set. */
export const openStatePages = (): Promise<ConfirmPages> =>
  openConfirmPages(
    (settings) => ({
      ...settings,
      pages: {
        name: 'Example Works',
        logo: 'logo.svg',
        accent: '#0f766e',
        links: [
          { text: { en: 'Help', de: 'Hilfe' }, url: 'https://help.example.test/' },
          { text: { en: 'Privacy', de: 'Datenschutz' }, url: 'https://example.test/privacy' },
        ],
        permissions: {
          'reports:read': { en: 'look at your sales reports', de: 'Ihre Verkaufsberichte ansehen' },
          'reports:write': {
            en: 'write new sales reports in your name',
            de: 'in Ihrem Namen Verkaufsberichte schreiben',
          },
        },
      },
      signIn: {
        openid: {
          works: {
            title: 'Example Login',
            // Nothing listens there: the page for a provider that is unreachable.
            issuer: 'https://127.0.0.1:2',
            clientId: 'gatehouse',
            clientSecret: 'unused',
            directory: 'staff',
            claim: 'sub',
            means: 'userName',
          },
        },
      },
      integrations: [
        ...(settings.integrations ?? []),
        {
          clientId: 'backup',
          name: 'Nightly backup',
          scope: 'files:read',
          access: [{ groups: ['operators'] }],
        },
      ],
    }),
    (folder) => writeFileSync(join(folder, 'logo.svg'), LOGO),
  );

export interface Stage {
  readonly pages: ConfirmPages;
  readonly page: Page;
}

const at = ({ pages }: Stage, path = ''): string => pages.url + BASE + path;

/** Does something that leads to another page, and waits until that page is loaded. */
export const leading = async (page: Page, action: () => Promise<unknown>): Promise<void> => {
  await Promise.all([page.waitForEvent('load'), action()]);
};
export const press = (page: Page, name: RegExp | string): Promise<void> =>
  leading(page, () => page.getByRole('button', { name }).click());
export const followLink = (page: Page, name: RegExp | string): Promise<void> =>
  leading(page, () => page.getByRole('link', { name }).click());

export const headingOf = (page: Page): Promise<string | null> =>
  page.getByRole('heading', { level: 1 }).textContent();

export async function typeCode(stage: Stage, code: string): Promise<void> {
  const { page } = stage;
  await page.goto(at(stage));
  await page.getByLabel('Code', { exact: true }).fill(code);
  await press(page, /^(?:Continue|Weiter)$/);
}

export async function signIn({ page }: Stage, name = 'alice', password = PASSWORD): Promise<void> {
  await page.getByLabel(/User name|Benutzername/).fill(name);
  await page.getByLabel(/Password|Passwort/).fill(password);
  await press(page, /^(?:Sign in|Anmelden)$/);
}

/** Others have used up the limit of all who are not signed in. */
async function afterManyGuesses(stage: Stage): Promise<void> {
  await stage.pages.change((settings) => ({
    ...settings,
    limits: { ...settings.limits, rates: { ...settings.limits?.rates, allCodeGuesses: '1/h' } },
  }));
  const guesser = stage.pages.browser();
  await guesser.get(BASE);
  await guesser.submit(BASE, { user_code: 'BCDF-GHJK' });
  await typeCode(stage, (await stage.pages.ask()).user_code);
}

/** Goes on where a browser without scripts has arrived: most states need only their last step in the real one. */
async function goOn(stage: Stage, from: PagesBrowser, path: string): Promise<void> {
  const [name = '', value = ''] = from.cookie.split('=');
  await stage.page.context().addCookies([{ name, value, url: stage.pages.url, secure: true }]);
  await stage.page.goto(at(stage, path));
}

async function enterCode(stage: Stage, userCode?: string): Promise<void> {
  const browser = stage.pages.browser();
  await browser.get(BASE);
  await browser.submit(BASE, { user_code: userCode ?? (await stage.pages.ask()).user_code });
  await goOn(stage, browser, '/sign-in');
}

export async function review(stage: Stage, name = 'alice'): Promise<Asked> {
  const asked = await stage.pages.ask('reports:read,write;files:read');
  const browser = stage.pages.browser();
  await browser.reachReview(asked.user_code, name);
  await goOn(stage, browser, '/review');
  return asked;
}

/** A request that another browser has decided. */
async function decided(stage: Stage, decision: 'approve' | 'deny'): Promise<void> {
  const asked = await stage.pages.ask();
  const other = stage.pages.browser();
  await other.reachReview(asked.user_code);
  await other.submit(`${BASE}/${decision}`);
  await typeCode(stage, asked.user_code);
}

/** Two grants; earlier ones have ended by then. */
async function giveGrants({ house }: ConfirmPages): Promise<void> {
  house.clock.advance(86_400 * 91);
  const now = house.clock.now();
  const grants: Partial<Grant>[] = [
    { scope: 'reports:read,write', issuedAt: now - 86_400 * 12, generation: 40, rotatedAt: now - 1_900 },
    { clientId: 'backup', grantType: 'certificate', scope: 'files:read', issuedAt: now - 3_600 * 5 },
  ];
  for (const [index, changes] of grants.entries()) {
    const grant: Grant = {
      id: `grant-${Math.floor(now)}-${index}`,
      clientId: 'report-runner',
      identity: identityOf('alice'),
      grantType: 'device',
      scope: 'reports:read',
      issuedAt: now,
      refreshUntil: now + 86_400 * 78,
      generation: 1,
      rotatedAt: now,
      accessExpires: now + 3_600,
      keys: { signing: 's', sealing: 's' },
      ...changes,
    };
    await house.gateway.store.grants.create(grant.id, grant, keepGrantUntil(grant));
  }
}

async function grants(stage: Stage, path = '/grants', name = 'alice'): Promise<void> {
  const browser = stage.pages.browser();
  await browser.open(`${BASE}/grants`);
  await browser.signIn(name);
  await goOn(stage, browser, path);
}

async function revoking(stage: Stage): Promise<void> {
  await giveGrants(stage.pages);
  await grants(stage);
  await followLink(stage.page, 'Revoke what Nightly backup may do');
}

/** Reaches a state and presses a button there. */
const pressing =
  (reach: (stage: Stage) => Promise<unknown>, name: RegExp | string) =>
  async (stage: Stage): Promise<void> => {
    await reach(stage);
    await press(stage.page, name);
  };

/** Every page and state a person can meet: how to get there, and the heading that says one is there. */
export const STATES: Readonly<
  Record<string, { readonly heading: string; reach(stage: Stage): Promise<unknown> }>
> = {
  code: { heading: 'Connect a device', reach: (stage) => stage.page.goto(at(stage)) },
  'code-from-link': {
    heading: 'Connect a device',
    reach: async (stage) => stage.page.goto(at(stage, `?user_code=${(await stage.pages.ask()).user_code}`)),
  },
  'code-wrong': { heading: 'Connect a device', reach: (stage) => typeCode(stage, 'BCDF-GHJK') },
  'sign-in': {
    heading: 'Sign in',
    reach: (stage) => enterCode(stage),
  },
  'sign-in-wrong': {
    heading: 'Sign in',
    async reach(stage) {
      await enterCode(stage);
      await signIn(stage, 'alice', 'not the password');
    },
  },
  'provider-away': {
    heading: 'Signing in does not work for a moment',
    reach: pressing(enterCode, /Example Login/),
  },
  review: { heading: 'Do you approve this?', reach: (stage) => review(stage) },
  'review-not-allowed': { heading: 'You cannot approve this', reach: (stage) => review(stage, 'bob') },
  'review-too-much': { heading: 'You cannot approve this', reach: (stage) => review(stage, 'rita') },
  approved: { heading: 'Approved', reach: pressing(review, 'Approve') },
  denied: { heading: 'Denied', reach: pressing(review, 'Deny') },
  'already-approved': { heading: 'Already approved', reach: (stage) => decided(stage, 'approve') },
  'already-denied': { heading: 'This request was denied', reach: (stage) => decided(stage, 'deny') },
  closed: {
    heading: 'This request is closed',
    async reach(stage) {
      const browser = stage.pages.browser();
      await browser.get(BASE);
      await browser.submit(BASE, { user_code: (await stage.pages.ask()).user_code });
      for (let tries = 0; tries < 4; tries += 1) await browser.signIn('alice', `wrong ${tries}`);
      await goOn(stage, browser, '/sign-in');
      await signIn(stage, 'alice', 'wrong');
    },
  },
  expired: {
    heading: 'The time has run out',
    async reach(stage) {
      await review(stage);
      stage.pages.house.clock.advance(301);
      await press(stage.page, 'Approve');
    },
  },
  'too-many-tries': {
    heading: 'Too many tries',
    async reach(stage) {
      const browser = stage.pages.browser();
      await browser.get(BASE);
      for (let tries = 0; tries < 5; tries += 1) await browser.submit(BASE, { user_code: 'BCDF-GHJK' });
      await goOn(stage, browser, '');
    },
  },
  'too-many-guesses': {
    heading: 'Too many tries',
    reach: afterManyGuesses,
  },
  'sign-in-first': {
    heading: 'Sign in',
    async reach(stage) {
      await afterManyGuesses(stage);
      await followLink(stage.page, 'Sign in');
    },
  },
  'code-after-sign-in': {
    heading: 'Connect a device',
    async reach(stage) {
      await afterManyGuesses(stage);
      await followLink(stage.page, 'Sign in');
      await signIn(stage);
    },
  },
  'store-away': {
    heading: 'Not available for a moment',
    async reach(stage) {
      await review(stage);
      stage.pages.beforeStore = storeUnavailable;
      await press(stage.page, 'Approve');
    },
  },
  'very-busy': {
    heading: 'Very busy just now',
    async reach(stage) {
      const { user_code } = await stage.pages.ask();
      await enterCode(stage, user_code);
      await stage.pages.fillSignInQueue(user_code);
      await signIn(stage);
    },
  },
  'page-run-out': {
    heading: 'This page has run out',
    async reach(stage) {
      await review(stage);
      stage.pages.house.clock.advance(901);
      await press(stage.page, 'Approve');
    },
  },
  'no-such-page': {
    heading: 'There is no such page',
    reach: (stage) => stage.page.goto(at(stage, '/nowhere')),
  },
  grants: {
    heading: 'What you have approved',
    async reach(stage) {
      await giveGrants(stage.pages);
      await grants(stage);
    },
  },
  'grants-empty': {
    heading: 'What you have approved',
    reach: (stage) => grants(stage, '/grants', 'rita'),
  },
  'grants-awaited': {
    heading: 'What you have approved',
    async reach(stage) {
      await pressing(review, 'Approve')(stage);
      await followLink(stage.page, 'What have I approved?');
    },
  },
  revoke: { heading: 'Revoke this?', reach: revoking },
  revoked: { heading: 'What you have approved', reach: pressing(revoking, 'Revoke') },
  'grant-gone': {
    heading: 'This is not there any more',
    reach: (stage) => grants(stage, '/grant?id=gone'),
  },
};
