import { describe, expect, test } from 'vitest';
import { clickButton, getHeading } from '../support/page-states.ts';
import { openAndClick, registerWorker, runScripts, startAttackSetup } from './api-scripts.ts';

const attack = startAttackSetup();

describe('pages on their own host', () => {
  test('D19 scripts of the API can neither read nor approve, but the user can', async () => {
    const { separate, reviewing, openApi, pages, victim } = attack();
    await separate();
    const { own } = attack();
    const pending = await reviewing();
    expect(await runScripts(await openApi(), own)).toEqual({
      fetch: 'TypeError: Failed to fetch',
      XMLHttpRequest: '0 no token 0',
      iframe: 'nothing',
      object: 'nothing',
      embed: 'nothing',
      form: '403',
    });
    for (const policies of ['', '?coop', '?coop&coep'])
      expect(await openAndClick(await openApi(policies), own)).toBe('severed');
    expect(await pages.readState(pending)).toBe('pending');
    await clickButton(victim, 'Approve');
    expect(await getHeading(victim)).toBe('Approved');
    expect(await pages.readState(pending)).toBe('confirmed');
  });

  test('D19 a service worker of the API cannot intercept the pages', async () => {
    const { separate, reviewing, openApi, victim } = attack();
    await separate();
    const { own } = attack();
    const api = await openApi();
    expect(await registerWorker(api)).toBe('registered');
    const seen: string[] = [];
    await api.exposeFunction('seen', (url: string) => void seen.push(url));
    await api.evaluate(() => {
      const { navigator, seen: report } = globalThis as unknown as {
        navigator: {
          serviceWorker: {
            addEventListener(name: 'message', heard: (event: { data: { url: string } }) => void): void;
            startMessages(): void;
          };
        };
        seen: (url: string) => void;
      };
      navigator.serviceWorker.addEventListener('message', ({ data }) => report(data.url));
      navigator.serviceWorker.startMessages();
    });
    await reviewing();
    await victim.reload();
    expect(await getHeading(victim)).toBe('Approve this request?');
    // The worker would have reported earlier requests before this one.
    await api.evaluate(() => fetch('/app/later'));
    await expect.poll(() => seen.some((url) => url.endsWith('/app/later')), { timeout: 30_000 }).toBe(true);
    expect(seen.filter((url) => url.startsWith(own))).toEqual([]);
  });
});
