import { hash } from 'node:crypto';
import { ALICE, type House, PASSWORD, type Reply } from './house.ts';
import type { Certified } from './pki.ts';

export const DEVICE_GRANT = 'urn:ietf:params:oauth:grant-type:device_code';
export const FORM = 'application/x-www-form-urlencoded';

export interface Codes {
  readonly device_code: string;
  readonly user_code: string;
  readonly verification_uri: string;
  readonly verification_uri_complete: string;
  readonly expires_in: number;
  readonly interval: number;
  readonly expires: number;
}

/** The steps of a device grant, as a device and as a person with a browser take them. */
export interface DeviceSteps {
  ask(clientId?: string, scope?: string): Promise<Codes>;
  exchange(deviceCode: string, clientId?: string): Promise<Reply>;
  /** Says yes where the page writes it, for tests that are about something else. */
  confirm(codes: Codes, identity?: string): Promise<void>;
  /** The whole walk through the real pages: code, sign-in, review, the decision. Gives the last page. */
  walk(codes: Codes, how?: Walk): Promise<Reply>;
}

export interface Walk {
  readonly decision?: 'approve' | 'deny';
  readonly userName?: string;
  readonly password?: string;
  /** The certificate the browser presents; it then signs in by it. */
  readonly as?: Certified;
}

export function deviceSteps(house: House): DeviceSteps {
  return {
    async ask(clientId = 'report-runner', scope = 'files:read') {
      const reply = await house.post('/Authorize/Device', { client_id: clientId, scope });
      if (reply.status !== 200) throw new Error(`no device codes: ${reply.status} ${reply.text}`);
      return reply.json as unknown as Codes;
    },
    exchange: (deviceCode, clientId = 'report-runner') =>
      house.post('/Authorize/Token', {
        client_id: clientId,
        grant_type: DEVICE_GRANT,
        device_code: deviceCode,
      }),
    async confirm(codes, identity = ALICE) {
      const { devices } = house.gateway.store;
      const id = hash('sha256', codes.device_code, 'base64url').slice(0, 22);
      const found = await devices.read(id);
      if (found === undefined) throw new Error('there is no such device request');
      const { record, version } = found;
      await devices.replace(id, version, { ...record, state: 'confirmed', identity }, record.expires + 600);
    },
    walk: (codes, how) => walk(house, codes, how),
  };
}

/** A browser without script: keeps its cookie, sends the page's forms, follows where it is sent. */
async function walk(
  house: House,
  codes: Codes,
  { decision = 'approve', userName = 'alice', password = PASSWORD, as }: Walk = {},
): Promise<Reply> {
  let cookie = '';
  const visit = async (path: string, fields?: Readonly<Record<string, string>>): Promise<Reply> => {
    const reply = await house.ask({
      path,
      ...(as !== undefined && { as }),
      headers: { ...(cookie !== '' && { cookie }), ...(fields && { 'content-type': FORM }) },
      ...(fields && { method: 'POST', body: new URLSearchParams(fields).toString() }),
    });
    const [set] = reply.headers['set-cookie'] ?? [];
    if (set !== undefined) cookie = set.split(';', 1)[0] ?? '';
    const { location } = reply.headers;
    return location === undefined ? reply : visit(location);
  };
  const send = (page: Reply, action: string, fields: Readonly<Record<string, string>> = {}): Promise<Reply> =>
    visit(`/authsvc/device${action}`, { ...fields, form_token: formToken(page, action) });

  const { pathname, search } = new URL(codes.verification_uri_complete);
  const codePage = await visit(pathname + search);
  const signInPage = await send(codePage, '', { user_code: codes.user_code });
  const reviewPage =
    as === undefined
      ? await send(signInPage, '/sign-in', { user_name: userName, password })
      : await send(signInPage, '/certificate');
  return send(reviewPage, `/${decision}`);
}

function formToken(page: Reply, action: string): string {
  const form = new RegExp(`action="/authsvc/device${action}"><input[^>]* value="([^"]+)"`);
  const token = form.exec(page.text)?.[1];
  if (token === undefined)
    throw new Error(`no form for "${action}" on the page: ${page.status} ${page.text}`);
  return token;
}
