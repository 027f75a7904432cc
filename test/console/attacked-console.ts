import { afterAll, beforeAll, beforeEach } from 'vitest';
import { type ConsoleHarness, readGrantId, startConsole } from '../support/console-harness.ts';
import type { FormBrowser } from '../support/form-browser.ts';

export const encode = (fields: Record<string, string>): string => new URLSearchParams(fields).toString();
/** The headers of a request from a page of the console at this URL. */
export const SAME_ORIGIN = (url: string) => ({ origin: url, 'sec-fetch-site': 'same-origin' });

/** A console on all addresses, for the tests of one file. It is usable only inside hooks and tests. */
export interface AttackedConsole extends Omit<ConsoleHarness, 'close'> {
  /** A browser that has signed in as an operator, a new one for each test. */
  readonly operator: FormBrowser;
  readonly liveGrant: () => Promise<{ readonly id: string; readonly isLive: () => Promise<boolean> }>;
}

export function useAttackedConsole(): AttackedConsole {
  let harness: ConsoleHarness;
  let operator: FormBrowser;
  beforeAll(async () => {
    harness = await startConsole((settings) => ({
      ...settings,
      admin: { ...settings.admin, host: '0.0.0.0' },
    }));
  });
  afterAll(() => harness?.close());
  beforeEach(async () => {
    // Refills the limits of wrong tokens.
    harness.gateway.clock.advance(3_600);
    operator = await harness.signedIn();
  });
  return {
    get gateway() {
      return harness.gateway;
    },
    get url() {
      return harness.url;
    },
    get token() {
      return harness.token;
    },
    get readOnlyToken() {
      return harness.readOnlyToken;
    },
    get operator() {
      return operator;
    },
    browser: () => harness.browser(),
    signedIn: (token) => harness.signedIn(token),
    async liveGrant() {
      const { gateway } = harness;
      const { access_token: token } = await gateway.grant();
      return {
        id: readGrantId(token),
        isLive: async () => (await gateway.api('/files/a', token)).status === 200,
      };
    },
  };
}
