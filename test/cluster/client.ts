import { Agent } from 'node:https';
import { buildConnector, Agent as UndiciAgent } from 'undici';
import { DEVICE_GRANT } from '../support/device-client.ts';
import { FormBrowser } from '../support/form-browser.ts';
import { jsonPostInit, type Reply, sendRequest, type TokenGrant } from '../support/https-client.ts';
import type { IssuedCertificate } from '../support/pki.ts';

export const HOST = 'api.example.test';
export const CLIENT_ID = 'nightly-export';
export const SCOPE = 'files:read';

/** A client of gatehouse at an address of the cluster: of a Service or of a pod. */
export interface ServiceClient {
  get(path: string, token?: string): Promise<Reply>;
  post(path: string, body: unknown): Promise<Reply>;
  /** A certificate grant; throws if it is refused. */
  grant(): Promise<TokenGrant>;
  refresh(refreshToken: string): Promise<Reply>;
  revoke(accessToken: string): Promise<Reply>;
  /** The device flow, confirmed in a browser with the client's certificate. */
  authorizeDevice(): Promise<TokenGrant>;
}

export interface ServiceClientOptions {
  readonly address: string;
  readonly port?: number;
  readonly ca: string;
  readonly as?: IssuedCertificate;
}

export function createServiceClient({ address, port = 443, ca, as }: ServiceClientOptions): ServiceClient {
  const identity = as && { cert: as.pem, key: as.keyPem };
  /** A new connection for each request: any pod may get it. */
  const request = (init: {
    readonly path: string;
    readonly method?: string;
    readonly body?: string;
    readonly headers?: Readonly<Record<string, string>>;
  }): Promise<Reply> => {
    const agent = new Agent({ keepAlive: false, ca, ...identity });
    return sendRequest({
      ...init,
      host: address,
      port,
      servername: HOST,
      agent,
      headers: { ...init.headers, host: HOST },
    });
  };
  const get: ServiceClient['get'] = (path, token) =>
    request({ path, ...(token !== undefined && { headers: { authorization: `Bearer ${token}` } }) });
  const post: ServiceClient['post'] = (path, body) => request(jsonPostInit(path, body));
  const toGrant = (reply: Reply): TokenGrant => {
    if (reply.status !== 200) throw new Error(`no grant: ${reply.status} ${reply.text}`);
    return reply.json as unknown as TokenGrant;
  };
  return {
    get,
    post,
    grant: async () => toGrant(await post('/Authorize/Certificate', { client_id: CLIENT_ID, scope: SCOPE })),
    refresh: (refreshToken) => post('/Authorize/Token', { client_id: CLIENT_ID, refresh_token: refreshToken }),
    revoke: (accessToken) => get('/authsvc/Revoke/Token', accessToken),
    async authorizeDevice() {
      const codes = await post('/Authorize/Device', { client_id: CLIENT_ID, scope: SCOPE });
      if (codes.status !== 200) throw new Error(`no device codes: ${codes.status} ${codes.text}`);
      const { device_code, user_code, verification_uri_complete } = codes.json as Record<string, string>;
      const connect = buildConnector({ ca, allowH2: false, ...identity });
      const agent = new UndiciAgent({
        allowH2: false,
        connect: (target, done) =>
          connect({ ...target, servername: HOST, hostname: address, port: String(port) }, done),
      });
      try {
        const browser = new FormBrowser({ agent });
        await browser.open(verification_uri_complete ?? '');
        await browser.submit('/device', { user_code: user_code ?? '' });
        await browser.submit('/certificate');
        await browser.submit('/approve');
      } finally {
        await agent.destroy();
      }
      return toGrant(await post('/Authorize/Token', { client_id: CLIENT_ID, grant_type: DEVICE_GRANT, device_code }));
    },
  };
}
