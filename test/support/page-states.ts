import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Page } from 'playwright-core';
import { createLook } from '../../src/confirm/look.ts';
import { type Grant, keepGrantUntil } from '../../src/domain/grant.ts';
import { openIdProvider } from '../../src/identity/openid.ts';
import { BASE, type ConfirmHouse, confirmHouse, integration, scopeOf } from './confirm-house.ts';

const LOGO = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 48 48"><rect width="48" height="48" rx="11" fill="#0f766e"/><path d="M13 34V23a11 11 0 0 1 22 0v11M9 34h30M24 34V19" fill="none" stroke="#fff" stroke-width="3.4" stroke-linecap="round"/></svg>`;

/** The pages as an operator might have them, with everything settable set. */
export async function stateHouse(): Promise<ConfirmHouse> {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-states-'));
  writeFileSync(join(folder, 'logo.svg'), LOGO);
  const look = createLook({
    name: 'Example Works',
    logo: join(folder, 'logo.svg'),
    accent: '#0f766e',
    language: 'en',
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
    myGrants: true,
  });
  rmSync(folder, { recursive: true });
  const provider = openIdProvider('works', {
    title: { en: 'Example Login' },
    // Nobody listens there: the page for a provider that is away.
    issuer: 'http://127.0.0.1:9/',
    clientId: 'gatehouse',
    sendSecret: 'basic',
    scope: 'openid',
    directory: 'staff',
    claim: 'sub',
    means: 'userName',
    timeout: 5,
  });
  return confirmHouse({ look, providers: [provider] });
}

export interface Stage {
  readonly house: ConfirmHouse;
  readonly page: Page;
}

const at = ({ house }: Stage, path = ''): string => house.url + BASE + path;
const press = (page: Page, name: RegExp | string): Promise<void> =>
  page.getByRole('button', { name }).click();

export async function typeCode(stage: Stage, code: string): Promise<void> {
  const { page } = stage;
  await page.goto(at(stage));
  await page.getByLabel('Code', { exact: true }).fill(code);
  await press(page, /^(?:Continue|Weiter)$/);
}

export async function signIn({ page }: Stage, name = 'alice', password = `${name}-password`): Promise<void> {
  await page.getByLabel(/User name|Benutzername/).fill(name);
  await page.getByLabel(/Password|Passwort/).fill(password);
  await press(page, /^(?:Sign in|Anmelden)$/);
}

async function review(
  stage: Stage,
  name = 'alice',
  scope = 'reports:read,write;files:read',
): Promise<string> {
  const asked = await stage.house.ask({ scope });
  await typeCode(stage, asked.userCode);
  await signIn(stage, name);
  return asked.requestId;
}

async function giveGrants({ world, desk }: ConfirmHouse): Promise<void> {
  const identity = world.people.get('alice')?.identity ?? '';
  const { now } = world;
  world.integrations.set(
    'backup',
    integration({ clientId: 'backup', name: 'Nightly backup', scope: scopeOf('files:read') }),
  );
  const grants: Partial<Grant>[] = [
    {
      id: 'grant-one',
      scope: 'reports:read,write',
      issuedAt: now - 86_400 * 12,
      generation: 40,
      rotatedAt: now - 1_900,
    },
    {
      id: 'grant-two',
      clientId: 'backup',
      grantType: 'certificate',
      scope: 'files:read',
      issuedAt: now - 3_600 * 5,
    },
  ];
  for (const changes of grants) {
    const grant: Grant = {
      id: 'grant',
      clientId: 'report-runner',
      identity,
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
    await desk.store.grants.create(grant.id, grant, keepGrantUntil(grant));
  }
}

async function grants(stage: Stage): Promise<void> {
  await giveGrants(stage.house);
  await stage.page.goto(at(stage, '/grants'));
  await signIn(stage);
}

/** Every page and state a person can meet: how to get there, and the heading that says one is there. */
export const STATES: Readonly<
  Record<string, { readonly heading: string; reach(stage: Stage): Promise<unknown> }>
> = {
  code: { heading: 'Connect a device', reach: (stage) => stage.page.goto(at(stage)) },
  'code-from-link': {
    heading: 'Connect a device',
    reach: async (stage) => stage.page.goto(at(stage, `?user_code=${(await stage.house.ask()).userCode}`)),
  },
  'code-wrong': { heading: 'Connect a device', reach: (stage) => typeCode(stage, 'BCDF-GHJK') },
  'sign-in': {
    heading: 'Sign in',
    reach: async (stage) => typeCode(stage, (await stage.house.ask()).userCode),
  },
  'sign-in-wrong': {
    heading: 'Sign in',
    async reach(stage) {
      await typeCode(stage, (await stage.house.ask()).userCode);
      await signIn(stage, 'alice', 'not the password');
    },
  },
  'provider-away': {
    heading: 'Signing in does not work for a moment',
    async reach(stage) {
      await typeCode(stage, (await stage.house.ask()).userCode);
      await press(stage.page, /Example Login/);
    },
  },
  review: { heading: 'Do you approve this?', reach: (stage) => review(stage) },
  'review-not-allowed': { heading: 'You cannot approve this', reach: (stage) => review(stage, 'bob') },
  'review-too-much': { heading: 'You cannot approve this', reach: (stage) => review(stage, 'rita') },
  approved: {
    heading: 'Approved',
    async reach(stage) {
      await review(stage);
      await press(stage.page, 'Approve');
    },
  },
  denied: {
    heading: 'Denied',
    async reach(stage) {
      await review(stage);
      await press(stage.page, 'Deny');
    },
  },
  'already-approved': {
    heading: 'Already approved',
    async reach(stage) {
      const asked = await stage.house.ask();
      const other = stage.house.browser();
      await other.reachReview(asked.userCode);
      await other.submit(`${BASE}/approve`);
      await typeCode(stage, asked.userCode);
    },
  },
  'already-denied': {
    heading: 'This request was denied',
    async reach(stage) {
      const asked = await stage.house.ask();
      const other = stage.house.browser();
      await other.reachReview(asked.userCode);
      await other.submit(`${BASE}/deny`);
      await typeCode(stage, asked.userCode);
    },
  },
  closed: {
    heading: 'This request is closed',
    async reach(stage) {
      await typeCode(stage, (await stage.house.ask()).userCode);
      for (let tries = 0; tries < 5; tries += 1) await signIn(stage, 'alice', `wrong ${tries}`);
    },
  },
  expired: {
    heading: 'The time has run out',
    async reach(stage) {
      await review(stage);
      stage.house.world.now += 301;
      await press(stage.page, 'Approve');
    },
  },
  'too-many-tries': {
    heading: 'Too many tries',
    async reach(stage) {
      await stage.page.goto(at(stage));
      for (let tries = 0; tries < 6; tries += 1) {
        if (
          tries > 0 &&
          (await stage.page.getByRole('heading', { level: 1 }).textContent()) === 'Too many tries'
        )
          break;
        await stage.page.getByLabel('Code', { exact: true }).fill('BCDF-GHJK');
        await press(stage.page, 'Continue');
      }
    },
  },
  'store-away': {
    heading: 'Not available for a moment',
    async reach(stage) {
      await review(stage);
      stage.house.world.storeAway = true;
      await press(stage.page, 'Approve');
    },
  },
  'very-busy': {
    heading: 'Very busy just now',
    async reach(stage) {
      await typeCode(stage, (await stage.house.ask()).userCode);
      stage.house.world.passwordsBusy = true;
      await signIn(stage);
    },
  },
  'page-run-out': {
    heading: 'This page has run out',
    async reach(stage) {
      await review(stage);
      stage.house.world.now += 901;
      await press(stage.page, 'Approve');
    },
  },
  'no-such-page': {
    heading: 'There is no such page',
    reach: (stage) => stage.page.goto(at(stage, '/nowhere')),
  },
  grants: { heading: 'What you have approved', reach: grants },
  'grants-empty': {
    heading: 'What you have approved',
    async reach(stage) {
      await stage.page.goto(at(stage, '/grants'));
      await signIn(stage, 'rita');
    },
  },
  'grants-awaited': {
    heading: 'What you have approved',
    async reach(stage) {
      await review(stage);
      await press(stage.page, 'Approve');
      await stage.page.getByRole('link', { name: 'What have I approved?' }).click();
    },
  },
  revoke: {
    heading: 'Revoke this?',
    async reach(stage) {
      await grants(stage);
      await stage.page.getByRole('link', { name: 'Revoke what Nightly backup may do' }).click();
    },
  },
  revoked: {
    heading: 'What you have approved',
    async reach(stage) {
      await grants(stage);
      await stage.page.getByRole('link', { name: 'Revoke what Nightly backup may do' }).click();
      await press(stage.page, 'Revoke');
    },
  },
  'grant-gone': {
    heading: 'This is not there any more',
    reach: async (stage) => {
      await grants(stage);
      await stage.page.goto(at(stage, '/grant?id=gone'));
    },
  },
};
