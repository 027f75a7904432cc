import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type Agent, fetch as fetchBy } from 'undici';
import { type Codes, type DeviceSteps, deviceSteps } from './device-steps.ts';
import { connectionsOf } from './form-browser.ts';
import { type Change, type House, openHouse } from './house.ts';
import type { Certified } from './pki.ts';

/** As libraries take it: less than what `fetch` itself takes. */
export type Fetch = (target: string | URL, options?: object) => Promise<Response>;

/** A house at the address it says it has, for clients that find everything by its metadata. */
export interface ClientHouse {
  readonly house: House;
  readonly url: string;
  readonly device: DeviceSteps;
  readonly files: { readonly ca: string; readonly certificate: string; readonly key: string };
  /** `fetch` that trusts the house's CA, perhaps with a client certificate. */
  fetch(as?: Certified): Fetch;
  /** A person types the code on the real pages and approves. */
  approve(userCode: string): Promise<void>;
  close(): Promise<void>;
}

export async function openClientHouse(change: Change = (settings) => settings): Promise<ClientHouse> {
  const house = await openHouse((settings) =>
    change({
      ...settings,
      introspection: { access: [{ groups: ['operators'] }] },
      device: { interval: '1s' },
    }),
  );
  const url = `https://localhost:${house.port}`;
  await house.reload((settings) => ({ ...settings, publicUrl: url }));
  const files = {
    ca: join(house.folder, 'ca.pem'),
    certificate: join(house.folder, 'alice.pem'),
    key: join(house.folder, 'alice-key.pem'),
  };
  writeFileSync(files.certificate, house.people.alice.pem);
  writeFileSync(files.key, house.people.alice.keyPem, { mode: 0o600 });
  const device = deviceSteps(house);
  const agents: Agent[] = [];
  return {
    house,
    url,
    device,
    files,
    fetch(as) {
      const dispatcher = connectionsOf({ ca: house.ca.pem, certificate: as });
      agents.push(dispatcher);
      return async (target, options) => fetchBy(target, { ...options, dispatcher });
    },
    async approve(userCode) {
      const complete = `${url}/authsvc/device?user_code=${userCode}`;
      const codes = { user_code: userCode, verification_uri_complete: complete } as Codes;
      const page = await device.walk(codes);
      if (page.status !== 200) throw new Error(`not approved: ${page.status} ${page.text}`);
    },
    async close() {
      for (const agent of agents) await agent.destroy();
      await house.close();
    },
  };
}
