import { writeFileSync } from 'node:fs';
import { createServer as createHttpServer } from 'node:http';
import { createServer } from 'node:https';
import { join } from 'node:path';
import type { Page } from 'playwright-core';
import { type Grant, getGrantRecordExpiry } from '../../src/domain/grant.ts';
import type { Language } from '../../src/domain/language.ts';
import { fillIn, MESSAGES, type Messages } from '../../src/pages/views/messages/languages.ts';
import { CALLBACK, createPkce } from './code-client.ts';
import {
  BASE,
  identityOf,
  type PagesBrowser,
  type PagesHarness,
  type PendingRequest,
  startPagesHarness,
  storeUnavailable,
} from './pages-harness.ts';
import { issueServer } from './pki.ts';
import { listenTcp } from './tcp-server.ts';
import { PASSWORD } from './test-gateway.ts';

const LOGO = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 48 48"><rect width="48" height="48" rx="11" fill="#0f766e"/><path d="M13 34V23a11 11 0 0 1 22 0v11M9 34h30M24 34V19" fill="none" stroke="#fff" stroke-width="3.4" stroke-linecap="round"/></svg>`;

/** Pages with every branding option set. */
export const startStatePages = (): Promise<PagesHarness> =>
  startPagesHarness(
    (settings) => ({
      ...settings,
      pages: {
        name: 'Example Works',
        logo: 'logo.svg',
        accent: '#0f766e',
        timeZone: 'Europe/Berlin',
        links: [
          {
            text: { en: 'Help', de: 'Hilfe', es: 'Ayuda', fr: 'Aide' },
            url: 'https://help.example.test/',
          },
          {
            text: { en: 'Privacy', de: 'Datenschutz', es: 'Privacidad', fr: 'Confidentialité' },
            url: 'https://example.test/privacy',
          },
        ],
        permissions: {
          'reports:read': {
            en: 'look at your sales reports',
            de: 'Ihre Verkaufsberichte ansehen',
            es: 'consultar sus informes de ventas',
            fr: 'consulter vos rapports de vente',
          },
          'reports:write': {
            en: 'write new sales reports in your name',
            de: 'in Ihrem Namen Verkaufsberichte schreiben',
            es: 'redactar informes de ventas en su nombre',
            fr: 'rédiger des rapports de vente en votre nom',
          },
        },
      },
      signIn: {
        openid: {
          works: {
            title: 'Example Login',
            // Nothing listens on this port, so the provider is unreachable.
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
        {
          clientId: 'assistant',
          name: 'Sales assistant',
          scope: 'reports:read,write;files:read',
          grants: ['code'],
          redirectUris: [CALLBACK, 'http://127.0.0.1/callback'],
          access: [{ groups: ['operators'] }],
        },
      ],
    }),
    (folder) => writeFileSync(join(folder, 'logo.svg'), LOGO),
  );

export interface PageContext {
  readonly pages: PagesHarness;
  readonly page: Page;
}

const pageUrl = ({ pages }: PageContext, path = ''): string => pages.url + BASE + path;

/** Runs an action that opens another page, and waits until it has loaded. */
export const waitForNavigation = async (page: Page, action: () => Promise<unknown>): Promise<void> => {
  await Promise.all([page.waitForEvent('load'), action()]);
};

/** The accessible name of a control: an English text is translated to the language of the page. */
type ControlName = RegExp | string | ((messages: Messages) => string);

async function getControlName(page: Page, name: ControlName): Promise<RegExp | string> {
  if (name instanceof RegExp) return name;
  const language = (await page.locator('html').getAttribute('lang')) as Language;
  return typeof name === 'function' ? name(MESSAGES[language]) : translate(name, language);
}

/** The text of a language in place of an English one; a text that is not one of the pages' is returned as it is. */
export function translate(text: string, language: Language): string {
  const find = (english: unknown, other: unknown): string | undefined => {
    if (english === text) return other as string;
    if (typeof english !== 'object' || english === null) return undefined;
    for (const [key, value] of Object.entries(english)) {
      const found = find(value, (other as Record<string, unknown>)[key]);
      if (found !== undefined) return found;
    }
    return undefined;
  };
  return find(MESSAGES.en, MESSAGES[language]) ?? text;
}

export const clickButton = async (page: Page, name: ControlName): Promise<void> => {
  const button = page.getByRole('button', { name: await getControlName(page, name) });
  await waitForNavigation(page, () => button.click());
};
export const followLink = async (page: Page, name: ControlName): Promise<void> => {
  const link = page.getByRole('link', { name: await getControlName(page, name) });
  await waitForNavigation(page, () => link.click());
};

export const getHeading = (page: Page): Promise<string | null> => page.getByRole('heading', { level: 1 }).textContent();

interface BoxedElement {
  readonly outerHTML: string;
  readonly parentElement: { closest(selector: string): BoxedElement };
  getBoundingClientRect(): { readonly left: number; readonly right: number };
}

/** The elements that exceed the card they are in. */
export const listOverflowing = (page: Page): Promise<readonly string[]> =>
  page.locator('main *').evaluateAll((elements) =>
    (elements as unknown as readonly BoxedElement[])
      .filter((element) => {
        const { left, right } = element.getBoundingClientRect();
        const card = element.parentElement.closest('main, .item, .compare, .note').getBoundingClientRect();
        return right > left && (left < card.left - 0.5 || right > card.right + 0.5);
      })
      .map(({ outerHTML }) => outerHTML.slice(0, 120)),
  );

export async function submitUserCode(stage: PageContext, code: string): Promise<void> {
  const { page } = stage;
  await page.goto(pageUrl(stage));
  await page.locator('#user_code').fill(code);
  await clickButton(page, 'Continue');
}

export async function signIn({ page }: PageContext, name = 'alice', password = PASSWORD): Promise<void> {
  await page.locator('#user_name').fill(name);
  await page.locator('#password').fill(password);
  await waitForNavigation(page, () => page.locator('#password').press('Enter'));
}

/** Uses up the shared limit of code guesses for users who are not signed in. */
async function exhaustCodeGuesses(stage: PageContext): Promise<void> {
  await stage.pages.reconfigure((settings) => ({
    ...settings,
    limits: { ...settings.limits, rates: { ...settings.limits?.rates, allCodeGuesses: '1/h' } },
  }));
  const guesser = stage.pages.browser();
  await guesser.get(BASE);
  await guesser.submit(BASE, { user_code: 'BCDF-GHJK' });
  await submitUserCode(stage, (await stage.pages.requestCodes()).user_code);
}

/** Continues the session of a `PagesBrowser` in Chromium: most states need only the last step in a real browser. */
async function continueSession(stage: PageContext, from: PagesBrowser, path: string): Promise<void> {
  const [name = '', value = ''] = from.cookie.split('=');
  await stage.page.context().addCookies([{ name, value, url: stage.pages.url, secure: true }]);
  await stage.page.goto(pageUrl(stage, path));
}

async function enterCode(stage: PageContext, userCode?: string): Promise<void> {
  const browser = stage.pages.browser();
  await browser.get(BASE);
  await browser.submit(BASE, { user_code: userCode ?? (await stage.pages.requestCodes()).user_code });
  await continueSession(stage, browser, '/sign-in');
}

export async function openReview(
  stage: PageContext,
  name = 'alice',
  { scope = 'reports:read,write;files:read', deviceName = 'alice-laptop' } = {},
): Promise<PendingRequest> {
  const pending = await stage.pages.requestCodes(scope, { device_name: deviceName });
  const browser = stage.pages.browser();
  await browser.reachReview(pending.user_code, name);
  await continueSession(stage, browser, '/review');
  return pending;
}

/** Opens a request that was decided in another browser. */
async function openDecidedRequest(stage: PageContext, decision: 'approve' | 'deny'): Promise<void> {
  const pending = await stage.pages.requestCodes();
  const other = stage.pages.browser();
  await other.reachReview(pending.user_code);
  await other.submit(`${BASE}/${decision}`);
  await submitUserCode(stage, pending.user_code);
}

/** Creates two grants, after earlier ones have expired. */
async function createGrants({ gateway }: PagesHarness): Promise<void> {
  gateway.clock.advance(86_400 * 91);
  const now = gateway.clock.now();
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
    await gateway.server.store.grants.create(grant.id, grant, getGrantRecordExpiry(grant));
  }
}

/** Follows an app to the authorization endpoint. */
async function openAuthorization(stage: PageContext, changes: Readonly<Record<string, string>> = {}): Promise<void> {
  const parameters = new URLSearchParams({
    response_type: 'code',
    client_id: 'assistant',
    redirect_uri: CALLBACK,
    scope: 'reports:read,write',
    state: 'one',
    code_challenge: createPkce().challenge,
    code_challenge_method: 'S256',
    ...changes,
  });
  await stage.page.goto(`${stage.pages.url}/authsvc/oauth2/authorize?${parameters.toString()}`);
}

async function openAuthorizationReview(
  stage: PageContext,
  name = 'alice',
  changes: Readonly<Record<string, string>> = {},
): Promise<void> {
  await openAuthorization(stage, changes);
  await stage.page.waitForURL(/\/sign-in\?request=/);
  await signIn(stage, name);
}

/** The user has denied the request of an app on this computer, and goes back. */
async function openDecidedAuthorization(stage: PageContext): Promise<void> {
  const { port, close } = await listenTcp(createHttpServer((_request, response) => response.end('done')));
  try {
    await openAuthorizationReview(stage, 'alice', { redirect_uri: `http://127.0.0.1:${port}/callback` });
    const review = stage.page.url();
    await clickButton(stage.page, 'Deny');
    await stage.page.goto(review);
  } finally {
    await close();
  }
}

/** An app that is not registered: its document is read from a server that runs until the page is shown. */
async function openUnregisteredReview(stage: PageContext): Promise<void> {
  const { pages } = stage;
  const { pem, keyPem } = await issueServer(pages.gateway.ca);
  let clientId = '';
  const { port, close } = await listenTcp(
    createServer({ cert: pem, key: keyPem }, (_request, response) => {
      response.setHeader('content-type', 'application/json');
      const document = { client_id: clientId, client_name: 'Sales assistant', redirect_uris: [CALLBACK] };
      response.end(JSON.stringify(document));
    }),
  );
  clientId = `https://localhost:${port}/client.json`;
  try {
    await pages.reconfigure((settings) => ({
      ...settings,
      integrations: [
        ...(settings.integrations ?? []),
        {
          clientId: 'agents',
          scope: 'reports:read,write',
          grants: ['code'],
          clientDocuments: { hosts: [`localhost:${port}`], privateAddresses: true, ca: 'ca.pem' },
          access: [{ groups: ['operators'] }],
        },
      ],
    }));
    await openAuthorizationReview(stage, 'alice', { client_id: clientId });
  } finally {
    await close();
  }
}

async function openGrants(stage: PageContext, path = '/grants', name = 'alice'): Promise<void> {
  const browser = stage.pages.browser();
  await browser.open(`${BASE}/grants`);
  await browser.signIn(name);
  await continueSession(stage, browser, path);
}

async function openRevocation(stage: PageContext): Promise<void> {
  await createGrants(stage.pages);
  await openGrants(stage);
  await followLink(stage.page, ({ grants }) => fillIn(grants.revokeLabelOf, 'Nightly backup'));
}

/** Reaches a state and clicks a button. */
const thenClick =
  (reach: (stage: PageContext) => Promise<unknown>, name: RegExp | string) =>
  async (stage: PageContext): Promise<void> => {
    await reach(stage);
    await clickButton(stage.page, name);
  };

interface PageState {
  readonly heading: string;
  /** The page has no link or button: the user returns to the app. */
  readonly isFinal?: boolean;
  reach(stage: PageContext): Promise<unknown>;
}

/** Every page and state a user can see: how to reach it, and the heading it has. */
export const STATES: Readonly<Record<string, PageState>> = {
  code: { heading: 'Connect a device', reach: (stage) => stage.page.goto(pageUrl(stage)) },
  'code-from-link': {
    heading: 'Connect a device',
    reach: async (stage) =>
      stage.page.goto(pageUrl(stage, `?user_code=${(await stage.pages.requestCodes()).user_code}`)),
  },
  'code-unknown': { heading: 'Connect a device', reach: (stage) => submitUserCode(stage, 'BCDF-GHJK') },
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
  'provider-unreachable': {
    heading: 'Sign-in temporarily unavailable',
    reach: thenClick(enterCode, /Example Login/),
  },
  review: { heading: 'Approve this request?', reach: (stage) => openReview(stage) },
  'review-not-allowed': {
    heading: 'You can’t approve this request',
    reach: (stage) => openReview(stage, 'bob'),
  },
  'review-too-much': {
    heading: 'You can’t approve this request',
    reach: (stage) => openReview(stage, 'rita'),
  },
  authorization: { heading: 'Approve this request?', reach: (stage) => openAuthorizationReview(stage) },
  'authorization-unregistered': { heading: 'Approve this request?', reach: openUnregisteredReview },
  'authorization-not-allowed': {
    heading: 'You can’t approve this request',
    reach: (stage) => openAuthorizationReview(stage, 'bob'),
  },
  'authorization-invalid': {
    heading: 'Invalid request',
    isFinal: true,
    reach: (stage) => openAuthorization(stage, { redirect_uri: 'https://other.example.test/' }),
  },
  'authorization-expired': {
    heading: 'Request expired',
    isFinal: true,
    async reach(stage) {
      await openAuthorizationReview(stage);
      stage.pages.gateway.clock.advance(601);
      await stage.page.reload();
    },
  },
  'authorization-decided': {
    heading: 'Already answered',
    isFinal: true,
    reach: openDecidedAuthorization,
  },
  'authorization-store-unreachable': {
    heading: 'Temporarily unavailable',
    async reach(stage) {
      await openAuthorizationReview(stage);
      stage.pages.beforeStore = storeUnavailable;
      await clickButton(stage.page, 'Approve');
    },
  },
  approved: { heading: 'Approved', reach: thenClick(openReview, 'Approve') },
  denied: { heading: 'Denied', reach: thenClick(openReview, 'Deny') },
  'already-approved': { heading: 'Already approved', reach: (stage) => openDecidedRequest(stage, 'approve') },
  'already-denied': { heading: 'Already denied', reach: (stage) => openDecidedRequest(stage, 'deny') },
  closed: {
    heading: 'Request closed',
    async reach(stage) {
      const browser = stage.pages.browser();
      await browser.get(BASE);
      await browser.submit(BASE, { user_code: (await stage.pages.requestCodes()).user_code });
      for (let tries = 0; tries < 4; tries += 1) await browser.signIn('alice', `wrong ${tries}`);
      await continueSession(stage, browser, '/sign-in');
      await signIn(stage, 'alice', 'wrong');
    },
  },
  expired: {
    heading: 'Code expired',
    async reach(stage) {
      await openReview(stage);
      stage.pages.gateway.clock.advance(301);
      await clickButton(stage.page, 'Approve');
    },
  },
  'too-many-tries': {
    heading: 'Too many attempts',
    async reach(stage) {
      const browser = stage.pages.browser();
      await browser.get(BASE);
      for (let tries = 0; tries < 5; tries += 1) await browser.submit(BASE, { user_code: 'BCDF-GHJK' });
      await continueSession(stage, browser, '');
    },
  },
  'too-many-guesses': {
    heading: 'Too many attempts',
    reach: exhaustCodeGuesses,
  },
  'sign-in-first': {
    heading: 'Sign in',
    async reach(stage) {
      await exhaustCodeGuesses(stage);
      await followLink(stage.page, 'Sign in');
    },
  },
  'code-after-sign-in': {
    heading: 'Connect a device',
    async reach(stage) {
      await exhaustCodeGuesses(stage);
      await followLink(stage.page, 'Sign in');
      await signIn(stage);
    },
  },
  'store-unreachable': {
    heading: 'Temporarily unavailable',
    async reach(stage) {
      await openReview(stage);
      stage.pages.beforeStore = storeUnavailable;
      await clickButton(stage.page, 'Approve');
    },
  },
  overloaded: {
    heading: 'Service busy',
    async reach(stage) {
      const { user_code } = await stage.pages.requestCodes();
      await enterCode(stage, user_code);
      await stage.pages.fillSignInQueue(user_code);
      await signIn(stage);
    },
  },
  'page-expired': {
    heading: 'Page expired',
    async reach(stage) {
      await openReview(stage);
      stage.pages.gateway.clock.advance(901);
      await clickButton(stage.page, 'Approve');
    },
  },
  root: {
    heading: 'This is an API',
    reach: (stage) => stage.page.goto(stage.pages.url),
  },
  'no-such-page': {
    heading: 'Page not found',
    reach: (stage) => stage.page.goto(pageUrl(stage, '/nowhere')),
  },
  grants: {
    heading: 'Approved apps and devices',
    async reach(stage) {
      await createGrants(stage.pages);
      await openGrants(stage);
    },
  },
  'grants-empty': {
    heading: 'Approved apps and devices',
    reach: (stage) => openGrants(stage, '/grants', 'rita'),
  },
  'grants-not-redeemed': {
    heading: 'Approved apps and devices',
    async reach(stage) {
      await thenClick(openReview, 'Approve')(stage);
      await followLink(stage.page, 'Approved apps and devices');
    },
  },
  revoke: { heading: 'Revoke access?', reach: openRevocation },
  revoked: { heading: 'Approved apps and devices', reach: thenClick(openRevocation, 'Revoke') },
  'grant-not-found': {
    heading: 'Access not found',
    reach: (stage) => openGrants(stage, '/grant?id=gone'),
  },
};
