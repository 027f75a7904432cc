import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Agent } from 'undici';
import { FormBrowser, type Page } from './form-browser.ts';
import { type SettingsChange, startGateway, type TestGateway } from './test-gateway.ts';

/** A complete gateway with helpers for tests of its console. */
export interface ConsoleHarness {
  readonly gateway: TestGateway;
  readonly url: string;
  /** The admin token and the read-only one, as their files contain them now. */
  readonly token: string;
  readonly readOnlyToken: string;
  /** A browser that has not signed in. */
  browser(): FormBrowser;
  /** A browser that has signed in as an operator, or with this token. */
  signedIn(token?: string): Promise<FormBrowser>;
  close(): Promise<void>;
}

export const READ_ONLY_TOKEN_FILE = 'data/viewer-token';

export const signIn = async (browser: FormBrowser, token: string): Promise<Page> => {
  await browser.open('/console');
  return browser.submit('/console/sign-in', { token });
};

export async function startConsole(change: SettingsChange = (settings) => settings): Promise<ConsoleHarness> {
  const gateway = await startGateway((settings) =>
    change({ ...settings, admin: { ...settings.admin, readOnlyTokenFile: READ_ONLY_TOKEN_FILE } }),
  );
  const agent = new Agent();
  const url = `http://127.0.0.1:${gateway.adminPort}`;
  const read = (file: string): string => readFileSync(join(gateway.folder, file), 'utf8').trim();
  const harness: ConsoleHarness = {
    gateway,
    url,
    get token() {
      return read('data/admin-token');
    },
    get readOnlyToken() {
      return read(READ_ONLY_TOKEN_FILE);
    },
    browser: () => new FormBrowser({ agent, base: url }),
    async signedIn(token = harness.token) {
      const browser = harness.browser();
      const { status, text } = await signIn(browser, token);
      if (status !== 200 || !text.includes('Sign out')) throw new Error(`not signed in: ${status} ${text}`);
      return browser;
    },
    async close() {
      await agent.destroy();
      await gateway.close();
    },
  };
  return harness;
}

/** The id of the grant of an access token. */
export const readGrantId = (accessToken: string): string =>
  (JSON.parse(Buffer.from(accessToken.split('.')[1] ?? '', 'base64url').toString()) as { gid: string }).gid;
