import { describe, expect, test } from 'vitest';
import { clickButton, getHeading } from '../support/page-states.ts';
import { BASE } from '../support/pages-harness.ts';
import { until } from '../support/until.ts';
import { openAndClick, registerWorker, runScripts, startAttackSetup } from './api-scripts.ts';

const attack = startAttackSetup();

describe('pages on the origin of the API', () => {
  test('D19 scripts of the API can neither read nor approve, but the user can', async () => {
    const { reviewing, openApi, pages, own, victim } = attack();
    const pending = await reviewing();
    expect(await runScripts(await openApi(), own)).toEqual({
      fetch: '403 no token 403',
      XMLHttpRequest: '403 no token 403',
      iframe: 'nothing',
      object: 'nothing',
      embed: 'nothing',
      form: '403',
    });
    expect(await openAndClick(await openApi(), own)).toBe('severed');
    expect(await openAndClick(await openApi('?coop'), own)).toBe('severed');
    expect(await pages.readState(pending)).toBe('pending');
    await clickButton(victim, 'Approve');
    expect(await getHeading(victim)).toBe('Approved');
    expect(await pages.readState(pending)).toBe('confirmed');
  });

  test('D19 a script of the API cannot start a sign-in, because it gets no form token', async () => {
    const { openApi, own } = attack();
    const page = await openApi();
    const [status, text] = await page.evaluate(async (url) => {
      const response = await fetch(url);
      return [response.status, await response.text()] as const;
    }, `${own}${BASE}`);
    expect(status).toBe(403);
    expect(text).not.toContain('form_token');
  });

  test('D19 no service worker can be registered', async () => {
    const { openApi, pages } = attack();
    expect(await registerWorker(await openApi())).toContain('bad HTTP response code (403)');
    const rejected = await until('the request is logged', () =>
      pages.gateway.log.find(({ reason }) => reason === 'service_worker_script'),
    );
    expect(rejected).toMatchObject({ event: 'request', status: 403 });
  });

  test('D19 an existing service worker cannot read the pages', async () => {
    const { openApi, pages, separate, victim } = attack();
    // Registered while the pages had their own host.
    await separate();
    expect(await registerWorker(await openApi())).toBe('registered');
    await pages.reconfigure((settings) => settings);
    await victim.goto(`${attack().own}${BASE}`);
    expect(await getHeading(victim)).toBe('Request not accepted');
    const rejected = await until('the request is logged', () =>
      pages.gateway.log.find(({ reason }) => reason === 'not_a_navigation'),
    );
    expect(rejected).toMatchObject({ event: 'request', status: 403 });
  });

  test('docs/security.md: a document of the API with COOP and COEP can access pages of the same origin', async () => {
    const { reviewing, openApi, pages, own } = attack();
    const pending = await reviewing();
    expect(await openAndClick(await openApi('?coop&coep'), own)).toBe('clicked');
    expect(await pages.readState(pending)).toBe('confirmed');
  });

  test('a link on another site opens the first page', async () => {
    const { pages, victim, own } = attack();
    const { user_code: code } = await pages.requestCodes();
    await victim.setContent(`<a href="${own}${BASE}?user_code=${code}">Approve</a>`);
    await victim.getByRole('link').click();
    // Before it, a page with the same URL redirects to it.
    expect(await victim.getByLabel('Code', { exact: true }).inputValue()).toBe(code);
    expect(await getHeading(victim)).toBe('Connect a device');
  });
});
