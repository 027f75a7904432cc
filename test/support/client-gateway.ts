import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Agent, fetch as fetchBy } from 'undici';
import { createDeviceClient, type DeviceClient, type DeviceCodes } from './device-client.ts';
import { createAgent, FormBrowser } from './form-browser.ts';
import type { IssuedCertificate } from './pki.ts';
import { PASSWORD, type SettingsChange, startGateway, type TestGateway } from './test-gateway.ts';

/** `fetch` with the parameters that client libraries pass. */
export type Fetch = (target: string | URL, options?: object) => Promise<Response>;

/** A gateway whose `publicUrl` is its real address, for clients that use the authorization server metadata (RFC 8414). */
export interface ClientGateway {
  readonly gateway: TestGateway;
  readonly url: string;
  readonly device: DeviceClient;
  readonly files: { readonly ca: string; readonly certificate: string; readonly key: string };
  /** `fetch` that trusts the gateway's CA and optionally presents a client certificate. */
  fetch(as?: IssuedCertificate): Fetch;
  /** Enters the user code on the real pages and approves. */
  approve(userCode: string): Promise<void>;
  /** Opens an authorization URL in a new browser, signs in and approves; returns the URL of the response. */
  authorize(url: string): Promise<string>;
  close(): Promise<void>;
}

export async function startClientGateway(change: SettingsChange = (settings) => settings): Promise<ClientGateway> {
  const gateway = await startGateway((settings) =>
    change({
      ...settings,
      introspection: { access: [{ groups: ['operators'] }] },
      device: { interval: '1s' },
    }),
  );
  const url = `https://localhost:${gateway.port}`;
  await gateway.reload((settings) => ({ ...settings, publicUrl: url }));
  const files = {
    ca: join(gateway.folder, 'ca.pem'),
    certificate: join(gateway.folder, 'alice.pem'),
    key: join(gateway.folder, 'alice-key.pem'),
  };
  writeFileSync(files.certificate, gateway.users.alice.pem);
  writeFileSync(files.key, gateway.users.alice.keyPem, { mode: 0o600 });
  const device = createDeviceClient(gateway);
  const agents: Agent[] = [];
  return {
    gateway,
    url,
    device,
    files,
    fetch(as) {
      const dispatcher = createAgent({ ca: gateway.ca.pem, certificate: as });
      agents.push(dispatcher);
      return async (target, options) => fetchBy(target, { ...options, dispatcher });
    },
    async approve(userCode) {
      const complete = `${url}/authsvc/device?user_code=${userCode}`;
      const codes = { user_code: userCode, verification_uri_complete: complete } as DeviceCodes;
      const page = await device.decideInBrowser(codes);
      if (page.status !== 200) throw new Error(`not approved: ${page.status} ${page.text}`);
    },
    async authorize(authorizationUrl) {
      const agent = createAgent({ ca: gateway.ca.pem });
      agents.push(agent);
      const browser = new FormBrowser({ agent, base: url });
      await browser.open(authorizationUrl);
      await browser.submit('/authsvc/device/sign-in', { user_name: 'alice', password: PASSWORD });
      const { redirectTo, status, text } = await browser.post('/authsvc/device/approve');
      if (redirectTo === undefined) throw new Error(`not approved: ${status} ${text}`);
      return redirectTo;
    },
    async close() {
      for (const agent of agents) await agent.destroy();
      await gateway.close();
    },
  };
}
