import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, expect } from 'vitest';
import { FORM } from '../support/device-client.ts';
import { createForeignKey, type ForeignKey, signForeign } from '../support/foreign-issuer.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { parseJson } from '../support/https-client.ts';
import { createOAuthClient, getAccessToken } from '../support/oauth-client.ts';
import {
  createProtocolClients,
  PROTOCOLS,
  type ProtocolClients,
  type ProtocolReply,
  type ProtocolRequest,
} from '../support/protocols.ts';
import type { TestGateway, TestRequest } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';
import { chooseVariants } from '../support/variants.ts';
import { CLIENT_SECRET, type IdentityGateway, startIdentityGateway } from './identity-gateway.ts';

export const ORIGIN = 'https://localhost:8443';
export const TOKEN_PATH = '/authsvc/oauth2/token';
export const LOGOUT_EVENT = 'http://schemas.openid.net/event/backchannel-logout';

export type Claims = Readonly<Record<string, unknown>>;
export type Fields = Readonly<Record<string, string>>;
export type CreateRequest = () => ProtocolRequest | Promise<ProtocolRequest>;

export interface Expected {
  readonly status: number;
  readonly error: string;
  /** Part of the reason in the log, where it is not obvious from the error. */
  readonly reason?: string;
}

export const INVALID_TOKEN = { status: 401, error: 'invalid_token' };
export const NOT_AUTHENTIC = { ...INVALID_TOKEN, reason: 'token_not_authentic' };
export const REVOKED = { ...INVALID_TOKEN, reason: 'token_revoked' };
export const EXPIRED = { ...INVALID_TOKEN, reason: 'token_expired' };
export const WRONG_AUDIENCE = { ...INVALID_TOKEN, reason: 'token_wrong_audience' };
export const INSUFFICIENT_SCOPE = { status: 403, error: 'insufficient_scope' };
export const INVALID_PROOF = { status: 401, error: 'invalid_dpop_proof' };
export const UNAVAILABLE = { status: 503, error: 'temporarily_unavailable' };
export const INVALID_CLIENT = { status: 401, error: 'invalid_client' };
export const refusal = (error: string, status = 400): Expected => ({ status, error });

/** `npm test` sends some of the cases of each kind. */
export const choose = <T>(cases: readonly T[]): readonly T[] => chooseVariants(cases, cases.slice(0, 3));

export const call = (token: string, path = '/files/1', more: Partial<ProtocolRequest> = {}): ProtocolRequest => ({
  path,
  ...more,
  headers: { authorization: `Bearer ${token}`, ...more.headers },
});
export const post = (path: string, fields: Fields, more: Partial<ProtocolRequest> = {}): ProtocolRequest => ({
  method: 'POST',
  path,
  body: new URLSearchParams(fields).toString(),
  ...more,
  headers: { 'content-type': FORM, ...more.headers },
});
export const requestToken = (fields: Fields, more?: Partial<ProtocolRequest>): ProtocolRequest =>
  post(TOKEN_PATH, fields, more);
export const authenticate = (fields: Fields, headers: Fields = {}): ProtocolRequest =>
  requestToken({ grant_type: 'client_credentials', ...fields }, { headers });
/** The fields with which the client `billing` authenticates. */
export const BILLING = { client_id: 'billing', client_secret: CLIENT_SECRET };

/**
 * Sends refused requests over HTTP/1.1 and HTTP/2: the responses and log lines must be equal, and the upstream must not
 * receive the request. It is usable only inside hooks and tests.
 */
export interface IdentityRefusals extends Omit<IdentityGateway, 'close'> {
  readonly clients: ProtocolClients;
  /** A key with the id of a trusted one, which no issuer publishes. */
  readonly attacker: ForeignKey;
  /** An access token of gatehouse for its own API. */
  readonly own: string;
  /** The time of the gateway, in seconds. */
  readonly now: () => number;
  /** Obtains an access token from the token endpoint. */
  readonly obtainToken: (fields: Fields, more?: Partial<TestRequest>) => Promise<string>;
  /** Revokes through the admin API. */
  readonly revoke: (revocation: Fields) => Promise<void>;
  readonly callCorp: (claims: Claims, path?: string) => CreateRequest;
  /** A logout token of the issuer `corp`. */
  readonly signLogout: (claims: Claims, header?: Claims) => Promise<string>;
  readonly expectRefused: (create: CreateRequest, expected: Expected) => Promise<void>;
  /** What shows that a refusal has the reason that its case names. */
  readonly expectAccepted: (create: CreateRequest) => Promise<void>;
}

/** Starts one gateway for all tests of a file, and freezes its clock. */
export function useIdentityRefusals(): IdentityRefusals {
  freezeClock();
  let identity: IdentityGateway;
  let clients: ProtocolClients;
  let attacker: ForeignKey;
  let own: string;
  beforeAll(async () => {
    identity = await startIdentityGateway();
    clients = createProtocolClients(identity.gateway);
    attacker = await createForeignKey('ES256', 'k1');
    own = (await identity.gateway.grant()).access_token;
  });
  afterAll(async () => {
    clients?.close();
    await identity?.close();
  });
  beforeEach(() => {
    identity.gateway.upstream.requests.length = 0;
  });
  const now = (): number => Math.floor(identity.gateway.clock.now());
  return {
    get gateway() {
      return identity.gateway;
    },
    get corp() {
      return identity.corp;
    },
    get clientKey() {
      return identity.clientKey;
    },
    get certificates() {
      return identity.certificates;
    },
    get clients() {
      return clients;
    },
    get attacker() {
      return attacker;
    },
    get own() {
      return own;
    },
    signPartner: (claims, header) => identity.signPartner(claims, header),
    signUnreachable: (claims) => identity.signUnreachable(claims),
    issueOpaque: (claims) => identity.issueOpaque(claims),
    now,
    obtainToken: async (fields, more) =>
      getAccessToken(await createOAuthClient(identity.gateway).post('token', fields, more)),
    revoke: (revocation) => revoke(identity.gateway, revocation),
    callCorp: (claims, path) => async () => call(await identity.corp.sign(claims), path),
    signLogout: (claims, header = { typ: 'logout+jwt' }) =>
      signForeign(
        identity.corp.published[0] as ForeignKey,
        {
          iss: identity.corp.url,
          aud: 'gatehouse-client',
          iat: now(),
          exp: now() + 120,
          jti: crypto.randomUUID(),
          events: { [LOGOUT_EVENT]: {} },
          ...claims,
        },
        header,
      ),
    expectRefused: (create, expected) => expectRefused(identity.gateway, clients, create, expected),
    async expectAccepted(create) {
      for (const protocol of PROTOCOLS) {
        const reply = await clients.send(protocol, await create());
        expect([protocol, reply.status, reply.text]).toEqual([protocol, 200, expect.any(String)]);
      }
    },
  };
}

async function revoke({ adminPort, folder }: TestGateway, revocation: Fields): Promise<void> {
  const token = readFileSync(join(folder, 'data/admin-token'), 'utf8').trim();
  const { status } = await fetch(`http://127.0.0.1:${adminPort}/admin/v1/revoke`, {
    method: 'POST',
    headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
    body: JSON.stringify(revocation),
  });
  expect(status).toBe(200);
}

/** Fields that each connection or response has its own values of. */
const OWN_FIELDS = new Set(['connection', 'content-length', 'date', 'keep-alive', 'transfer-encoding', 'x-request-id']);
/** The time until keys are fetched again passes while the test runs. */
const VARYING_FIELDS = new Set(['retry-after']);

const summarize = ({ status, headers, text }: ProtocolReply) => {
  const { request_id: _, ...body } = parseJson(text);
  const fields = Object.entries(headers).filter(([name]) => !OWN_FIELDS.has(name));
  return {
    status,
    body,
    fields: Object.fromEntries(
      fields.map(([name, value]) => [name, VARYING_FIELDS.has(name) ? /^[1-9]\d*$/.test(String(value)) : value]),
    ),
  };
};

const findLogLine = async (gateway: TestGateway, { headers }: ProtocolReply) => {
  const { decision, reason, status } = await until('the request is logged', () =>
    gateway.log.find((line) => line.event === 'request' && line['request_id'] === headers['x-request-id']),
  );
  return { decision, reason, status };
};

async function expectRefused(
  gateway: TestGateway,
  clients: ProtocolClients,
  create: CreateRequest,
  { status, error, reason }: Expected,
): Promise<void> {
  const all = [];
  for (const protocol of PROTOCOLS) {
    const reply = await clients.send(protocol, await create());
    const refusalText = expect.stringContaining(`"${error}"`);
    expect([protocol, reply.status, reply.text]).toEqual([protocol, status, refusalText]);
    all.push({ ...summarize(reply), log: await findLogLine(gateway, reply) });
  }
  const [first, ...others] = all;
  for (const other of others) expect(other).toEqual(first);
  if (status === 401 && error !== 'invalid_client')
    expect(String(first?.fields['www-authenticate'])).toContain(`error="${error}"`);
  if (status === 429 || status === 503) expect(first?.fields['retry-after']).toBe(true);
  if (reason !== undefined) expect(first?.log.reason).toContain(reason);
  expect(gateway.upstream.requests).toEqual([]);
}
