import type { Agent } from 'undici';
import type { SettingsInput } from '../../src/config/schema.ts';
import type { DeviceRequest } from '../../src/domain/device-request.ts';
import { parseScope, type Scope } from '../../src/domain/scope.ts';
import { Fault } from '../../src/ports/fault.ts';
import { type DeviceCodes, getRequestId } from './device-client.ts';
import { createAgent, FormBrowser, formToken, type Page } from './form-browser.ts';
import type { IssuedCertificate } from './pki.ts';
import { PASSWORD, type SettingsChange, startGateway, type TestGateway, testPasswordHash } from './test-gateway.ts';

export const BASE = '/authsvc/device';

type User = NonNullable<NonNullable<SettingsInput['directories']>[string]['users']>[number];

const passwordHash = testPasswordHash(PASSWORD);
const user = (index: number, displayName: string, groups: readonly string[], disabled = false): User => {
  const name = displayName.slice(0, displayName.indexOf(' ')).toLowerCase();
  const id = `{5f0c2a52-6d0e-4d0c-9c3e-00000000000${index}}`;
  return { id, name, displayName, commonName: name, groups: [...groups], disabled, passwordHash };
};
const USERS = [
  user(1, 'Alice Example', ['operators']),
  user(2, 'Rita Reader', ['readers']),
  user(3, 'Bob Nobody', []),
  user(4, 'Dora Disabled', ['operators'], true),
];

export const toScope = (text: string): Scope => {
  const parsed = parseScope(text);
  if (!parsed.ok) throw new Error(`not a scope: ${text}`);
  return parsed.value;
};

export const identityOf = (name: string): string => `local:${USERS.find((candidate) => candidate.name === name)?.id}`;

export interface PendingRequest extends DeviceCodes {
  readonly requestId: string;
}

/** A complete gateway with helpers for tests of its pages. */
export interface PagesHarness {
  readonly gateway: TestGateway;
  readonly url: string;
  /** `more`: further parameters of the request. */
  requestCodes(scope?: string, more?: Readonly<Record<string, string>>): Promise<PendingRequest>;
  readState(pending: PendingRequest): Promise<DeviceRequest['state']>;
  /** Each browser has its own client address, as reported by a trusted proxy. */
  browser(options?: { readonly address?: string; readonly certificate?: IssuedCertificate }): PagesBrowser;
  /** Runs before each operation on device requests, user codes and the grant index, before each revocation and each approval of an app. */
  beforeStore: () => Promise<void> | void;
  /**
   * Sends sign-ins for this request until the queue is full, and returns the response to the rejected one. The others, and
   * all store operations, are blocked until the next reset.
   */
  fillSignInQueue(userCode: string): Promise<Page>;
  /** Applies a change to the initial settings. */
  reconfigure(change: SettingsChange): Promise<void>;
  /** The names of the audit events so far. */
  events(): string[];
  /** Restores the settings and the store, clears the log, and advances the clock until all rate limits have recovered. */
  reset(seconds?: number): Promise<void>;
  close(): Promise<void>;
}

export const storeUnavailable = (): never => {
  throw new Fault('store_unavailable', 'the store is unreachable', { retryAfter: 7 });
};

export class PagesBrowser extends FormBrowser {
  /** Enters the code, signs in, and stops before the decision. */
  async reachReview(userCode: string, userName = 'alice'): Promise<Page> {
    await this.get(BASE);
    const next = await this.submit(BASE, { user_code: userCode });
    return next.text.includes('name="password"') ? this.signIn(userName) : next;
  }

  signIn(userName = 'alice', password = PASSWORD): Promise<Page> {
    return this.submit(`${BASE}/sign-in`, { user_name: userName, password });
  }
}

export async function startPagesHarness(
  change: SettingsChange = (settings) => settings,
  prepare?: (folder: string) => void,
): Promise<PagesHarness> {
  const gateway = await startGateway((settings) => ({ ...settings, trustedProxies: ['127.0.0.1', '::1'] }), prepare);
  const url = `https://localhost:${gateway.port}`;
  let base: SettingsInput = {};
  let isChanged = false;
  await gateway.reload((settings) => {
    base = change({ ...settings, publicUrl: url, directories: { staff: { label: 'local', users: USERS } } });
    return base;
  });

  const { devices, userCodes, notes, grantIndex, revocations } = gateway.server.store;
  const readDevice = devices.read.bind(devices);
  const intercept = <T extends object>(store: T, ...names: readonly (keyof T)[]): void => {
    for (const name of names) {
      const real = store[name] as (...args: unknown[]) => Promise<unknown>;
      const intercepted = async (...args: unknown[]): Promise<unknown> => {
        await pages.beforeStore();
        return Reflect.apply(real, store, args);
      };
      Object.assign(store, { [name]: intercepted });
    }
  };
  const connections = new Map<IssuedCertificate | undefined, Agent>();
  let addresses = 0;
  let release = async (): Promise<void> => {};
  const pages: PagesHarness = {
    gateway,
    url,
    beforeStore: () => {},
    async requestCodes(scope = 'reports:read,write', more = {}) {
      const reply = await gateway.post(
        '/Authorize/Device',
        { client_id: 'report-runner', scope, ...more },
        { headers: { 'x-forwarded-for': '198.51.100.7' } },
      );
      if (reply.status !== 200) throw new Error(`no device codes: ${reply.status} ${reply.text}`);
      const codes = reply.json as unknown as DeviceCodes;
      return { ...codes, requestId: getRequestId(codes) };
    },
    readState: async ({ requestId }) => (await readDevice(requestId))?.record.state ?? 'closed',
    browser({ certificate, address } = {}) {
      const agent = connections.get(certificate) ?? createAgent({ ca: gateway.ca.pem, certificate });
      connections.set(certificate, agent);
      addresses += 1;
      const from = address ?? `10.9.${addresses >> 8}.${addresses & 255}`;
      return new PagesBrowser({ agent, base: url, headers: { 'x-forwarded-for': from } });
    },
    async fillSignInQueue(userCode) {
      const browser = pages.browser();
      await browser.get(BASE);
      const { text } = await browser.submit(BASE, { user_code: userCode });
      const form_token = formToken(text, `${BASE}/sign-in`);
      const body = new URLSearchParams({ form_token, user_name: 'alice', password: PASSWORD }).toString();
      const held = Promise.withResolvers<void>();
      pages.beforeStore = () => held.promise;
      // One is running and seven are queued: only the ninth gets a response.
      const all = Array.from({ length: 9 }, () => browser.send('POST', `${BASE}/sign-in`, body));
      release = async () => {
        held.resolve();
        await Promise.all(all);
      };
      return Promise.race(all);
    },
    async reconfigure(next) {
      isChanged = true;
      await gateway.reload(() => next(base));
    },
    events: () => gateway.log.filter(({ audit }) => audit === true).map(({ event }) => event),
    async reset(seconds = 1_200) {
      pages.beforeStore = () => {};
      await release();
      if (isChanged) await gateway.reload(() => base);
      isChanged = false;
      gateway.clock.advance(seconds);
      gateway.clearLog();
    },
    async close() {
      await release();
      for (const agent of connections.values()) await agent.destroy();
      await gateway.close();
    },
  };
  intercept(devices, 'read', 'create', 'replace');
  intercept(userCodes, 'read', 'create', 'replace');
  intercept(notes, 'create');
  intercept(grantIndex, 'list');
  intercept(revocations, 'announce');
  return pages;
}
