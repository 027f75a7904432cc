import { hash } from 'node:crypto';
import { createAgent, FormBrowser, type Page } from './form-browser.ts';
import type { IssuedCertificate } from './pki.ts';
import { ALICE, PASSWORD, type Reply, type TestGateway } from './test-gateway.ts';

export const DEVICE_GRANT = 'urn:ietf:params:oauth:grant-type:device_code';
export const FORM = 'application/x-www-form-urlencoded';

export interface DeviceCodes {
  readonly device_code: string;
  readonly user_code: string;
  readonly verification_uri: string;
  readonly verification_uri_complete: string;
  readonly expires_in: number;
  readonly interval: number;
  readonly expires: number;
}

/** The steps of a device authorization grant (RFC 8628), for the device and for the user's browser. */
export interface DeviceClient {
  requestCodes(clientId?: string, scope?: string): Promise<DeviceCodes>;
  exchange(deviceCode: string, clientId?: string): Promise<Reply>;
  /** Confirms the request directly in the store, for tests that don't cover the pages. */
  confirm(codes: DeviceCodes, identity?: string): Promise<void>;
  /** Enters the code, signs in, reviews and decides on the real pages. Returns the last page. */
  decideInBrowser(codes: DeviceCodes, decision?: BrowserDecision): Promise<Page>;
}

export interface BrowserDecision {
  readonly decision?: 'approve' | 'deny';
  readonly userName?: string;
  readonly password?: string;
  /** The certificate the browser presents and signs in with. */
  readonly as?: IssuedCertificate;
}

/** The key of the device request in the store. */
export const getRequestId = (codes: Pick<DeviceCodes, 'device_code'>): string =>
  hash('sha256', codes.device_code, 'base64url').slice(0, 22);

export function createDeviceClient(gateway: TestGateway): DeviceClient {
  return {
    async requestCodes(clientId = 'report-runner', scope = 'files:read') {
      const reply = await gateway.post('/Authorize/Device', { client_id: clientId, scope });
      if (reply.status !== 200) throw new Error(`no device codes: ${reply.status} ${reply.text}`);
      return reply.json as unknown as DeviceCodes;
    },
    exchange: (deviceCode, clientId = 'report-runner') =>
      gateway.post('/Authorize/Token', {
        client_id: clientId,
        grant_type: DEVICE_GRANT,
        device_code: deviceCode,
      }),
    async confirm(codes, identity = ALICE) {
      const { devices } = gateway.server.store;
      const id = getRequestId(codes);
      const found = await devices.read(id);
      if (found === undefined) throw new Error('device request not found');
      const { record, version } = found;
      const confirmed = { ...record, state: 'confirmed', identity, decidedAt: record.askedAt } as const;
      await devices.replace(id, version, confirmed, record.expires + 600);
    },
    async decideInBrowser(codes, { decision = 'approve', userName = 'alice', password = PASSWORD, as } = {}) {
      const agent = createAgent({ ca: gateway.ca.pem, certificate: as, port: gateway.port });
      const browser = new FormBrowser({ agent });
      try {
        await browser.open(codes.verification_uri_complete);
        await browser.submit('/device', { user_code: codes.user_code });
        await (as === undefined
          ? browser.submit('/sign-in', { user_name: userName, password })
          : browser.submit('/certificate'));
        return await browser.submit(`/${decision}`);
      } finally {
        await agent.destroy();
      }
    },
  };
}
