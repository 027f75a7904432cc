import { readFileSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { join } from 'node:path';
import { connect as connectTls } from 'node:tls';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createClient } from '../../src/client/client.ts';
import { endAllOf } from '../../src/grants/revoke.ts';
import { limitName, rateLimit } from '../../src/http/rate-limit.ts';
import { type LdapSettings, ldapDirectory } from '../../src/identity/ldap-directory.ts';
import { openIdProvider } from '../../src/identity/openid.ts';
import { createPeople } from '../../src/identity/people.ts';
import { createOutbox } from '../../src/observability/outbox.ts';
import { openAdmin } from '../../src/ops/admin.ts';
import type { Directory } from '../../src/ports/directory.ts';
import { Fault } from '../../src/ports/fault.ts';
import { gatehouse } from '../support/command-line.ts';
import { BASE, confirmHouse } from '../support/confirm-house.ts';
import { deviceSteps } from '../support/device-steps.ts';
import { freePort } from '../support/gateway-process.ts';
import { ALICE, baseSettings, openHouse, settingsIn, testPasswordHash } from '../support/house.ts';
import { exchange } from '../support/https-client.ts';
import { BASE_DN, type LdapServer, ldapServer, PEOPLE_SETTINGS } from '../support/ldap-server.ts';
import { oauthSteps } from '../support/oauth-steps.ts';
import { CLIENT, openIdServer } from '../support/openid-provider.ts';
import { issue, issueServer, makeCa } from '../support/pki.ts';

let server: LdapServer;
const opened: { close(): unknown }[] = [];
beforeAll(async () => {
  server = await ldapServer();
});
afterAll(async () => {
  for (const one of opened) await one.close();
  await server.remove();
});

function directory(changes: Partial<LdapSettings>): Directory {
  const made = ldapDirectory('corp', 'corp', {
    ...PEOPLE_SETTINGS,
    urls: [server.plain],
    timeout: 5,
    ...changes,
  });
  opened.push(made);
  return made;
}

/** Somebody in the middle: sees and changes what is not encrypted, and may cut connections. */
async function middleman(
  on: (client: Socket, server: Socket) => void,
): Promise<{ readonly url: string; readonly connections: () => number }> {
  let count = 0;
  const middle: Server = createServer((client) => {
    count += 1;
    const upstream = connect(server.port, '127.0.0.1');
    client.on('error', () => upstream.destroy()).on('close', () => upstream.destroy());
    upstream.on('error', () => client.destroy()).on('close', () => client.destroy());
    on(client, upstream);
  });
  await new Promise<void>((resolve) => middle.listen(0, '127.0.0.1', resolve));
  opened.push({ close: () => new Promise((resolve) => middle.close(resolve)) });
  const { port } = middle.address() as { port: number };
  return { url: `ldap://localhost:${port}`, connections: () => count };
}

/** A response to the bind that follows: success, whose text swallows the next 14 bytes, the real response. */
const FORGED = Buffer.from('301a02010361150a01000400040e', 'hex');

test('words put behind the answer to StartTLS by somebody in the middle end the connection: no bind is forged', async () => {
  let injected = 0;
  const middle = await middleman((client, upstream) => {
    client.pipe(upstream);
    upstream.once('data', (answer: Buffer) => {
      injected += 1;
      client.write(Buffer.concat([answer, FORGED]));
      upstream.pipe(client);
    });
  });
  const corp = directory({ urls: [middle.url], startTls: true, ca: server.ca.pem });
  await expect(corp.signIn('alice', 'not her password')).rejects.toMatchObject({
    code: 'directory_unavailable',
  });
  expect(injected).toBeGreaterThan(0);
});

test('a server that takes StartTLS and then says nothing is away after the patience of the settings', async () => {
  const middle = await middleman((client, upstream) => {
    client.pipe(upstream);
    upstream.once('data', (answer: Buffer) => {
      upstream.pause();
      client.write(answer);
    });
  });
  const corp = directory({ urls: [middle.url], startTls: true, ca: server.ca.pem, timeout: 1 });
  await expect(corp.signIn('alice', 'alice password')).rejects.toMatchObject({
    code: 'directory_unavailable',
  });
});

test('while one directory is away, guesses at people of another still use up the budget of their name', async () => {
  const house = await confirmHouse();
  const away = `ldap://127.0.0.1:${await freePort()}`;
  const people = createPeople({
    staff: {
      label: 'staff',
      derive: false,
      users: [
        {
          id: '{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}',
          name: 'alice',
          groups: ['operators'],
          disabled: false,
          passwordHash: testPasswordHash('right password'),
        },
      ],
    },
    corp: {
      label: 'corp',
      derive: false,
      users: [],
      ldap: {
        ...PEOPLE_SETTINGS,
        url: [away],
        timeout: 2,
        connections: 2,
        base: BASE_DN,
        filter: '(objectClass=person)',
      },
    },
  });
  const now = (): number => house.world.now;
  Object.assign(house.desk, { people });
  Object.assign(house.memory, { failuresAs: rateLimit({ burst: 3, perSecond: 0.001 }, now) });
  try {
    const tried: number[] = [];
    for (const password of ['one', 'two', 'three', 'right password']) {
      const browser = house.browser({ address: `198.51.100.${tried.length}` });
      await browser.get(`${BASE}/grants`);
      await browser.get(`${BASE}/sign-in`);
      const answer = await browser.submit(`${BASE}/sign-in`, { user_name: 'alice', password });
      tried.push(answer.status);
    }
    // Told as our failure, since it may be one; and paid for.
    expect(tried).toEqual([503, 503, 503, 429]);
  } finally {
    await people.close();
    await house.close();
  }
});

test('a provider that is closed twice, as by a reload under load, is closed and throws nothing', async () => {
  const ca = await makeCa();
  const running = await openIdServer(await issueServer(ca), [
    'https://localhost/authsvc/device/openid/there',
  ]);
  const provider = openIdProvider('there', {
    title: { en: 'There' },
    issuer: running.issuer,
    clientId: CLIENT.id,
    clientSecret: CLIENT.secret,
    sendSecret: 'basic',
    scope: 'openid',
    ca: ca.pem,
    directory: 'staff',
    claim: 'sub',
    means: 'subject',
    timeout: 5,
  });
  try {
    await provider.begin('https://localhost/authsvc/device/openid/there');
    await provider.close();
    await expect(provider.close()).resolves.toBeUndefined();
  } finally {
    await running.stop();
  }
});

test('a web page does not administer, even in the browser of an operator with a certificate', async () => {
  const ca = await makeCa();
  const serverCertificate = await issueServer(ca);
  const operator = await issue(ca, { commonName: 'operator' });
  const acts: string[] = [];
  let isAway = false;
  const admin = await openAdmin({
    host: '127.0.0.1',
    port: 0,
    checks: [],
    tokenFile: '/nowhere',
    tls: { certificate: serverCertificate.pem, key: serverCertificate.keyPem, clientCa: ca.pem },
    administer: async ({ path }) => {
      if (isAway) throw new Fault('store_unavailable', 'away');
      acts.push(path);
      return { status: 200, body: {} };
    },
  });
  const post = async (headers: Record<string, string>): Promise<number> => {
    const identity = { ca: ca.pem, cert: operator.pem, key: operator.keyPem };
    const path = '/admin/v1/grants/abc/revoke';
    return (await exchange({ port: admin.port, path, method: 'POST', headers, ...identity })).status;
  };
  try {
    expect(await post({ origin: 'https://elsewhere.example', 'sec-fetch-site': 'cross-site' })).toBe(403);
    expect(await post({ origin: 'null' })).toBe(403);
    expect(await post({ 'sec-fetch-site': 'same-site' })).toBe(403);
    expect(acts).toEqual([]);
    expect(await post({})).toBe(200);
    isAway = true;
    expect(await post({})).toBe(503);
  } finally {
    await admin.close();
  }
});

test('a client sends its token over plain http to no origin but those of the machine itself', () => {
  const terms = { url: 'https://api.example.test', clientId: 'report-runner', scope: 'files:read' };
  expect(() => createClient({ ...terms, origins: ['http://files.example.test'] })).toThrow(/https only/);
  expect(() => createClient({ ...terms, servicePath: '//elsewhere.example/authsvc' })).toThrow(/elsewhere/);
  expect(createClient({ ...terms, origins: ['http://127.0.0.1:8080'] }).isOwn('http://127.0.0.1:8080')).toBe(
    true,
  );
});

test('no profile is named like the token file of another', async () => {
  const { code, stderr } = await gatehouse(['logout', '--profile', 'default.token']);
  expect(code).toBe(64);
  expect(stderr).toContain('.token');
});

test('a CA that a reload takes off the admin listener goes on deciding until the restart, and no public one in its place', async () => {
  const [ca, operators] = await Promise.all([makeCa(), makeCa({ name: 'CN=Operators' })]);
  const serverCertificate = await issueServer(ca);
  const tls = { certificate: serverCertificate.pem, key: serverCertificate.keyPem };
  const admin = await openAdmin({
    host: '127.0.0.1',
    port: 0,
    checks: [],
    tokenFile: '/nowhere',
    tls: { ...tls, clientCa: operators.pem },
    administer: async () => ({ status: 200, body: {} }),
  });
  try {
    expect(() => admin.setTls(tls)).toThrow('settled at start');
    admin.setTls({ ...tls, clientCa: operators.pem });
  } finally {
    await admin.close();
  }
});

test('a reload that changes what opens the administration says that it counts after a restart', async () => {
  const house = await openHouse();
  try {
    await house.reload((settings) => ({
      ...settings,
      admin: {
        port: 0,
        tokenFile: 'another-token',
        tls: { certificate: 'server.pem', key: 'server-key.pem', clientCa: 'ca.pem' },
      },
    }));
    const waiting = house.log
      .filter(({ event }) => event === 'restart_needed')
      .map((line) => line['setting']);
    expect(waiting).toEqual(['admin.tokenFile', 'admin.tls']);
  } finally {
    await house.close();
  }
});

test('a stranger’s certificate administers nothing, and neither does whoever comes back with its session or without one', async () => {
  const ca = await makeCa();
  const serverCertificate = await issueServer(ca);
  const stranger = await issue(await makeCa({ name: 'CN=Another CA' }), { commonName: 'operator' });
  let acts = 0;
  const admin = await openAdmin({
    host: '127.0.0.1',
    port: 0,
    checks: [],
    tokenFile: '/nowhere',
    tls: { certificate: serverCertificate.pem, key: serverCertificate.keyPem, clientCa: ca.pem },
    administer: async () => {
      acts += 1;
      return { status: 200, body: {} };
    },
  });
  const ask = (
    maxVersion: 'TLSv1.2' | 'TLSv1.3',
    shown: object,
    session?: Buffer,
  ): Promise<{ readonly head: string; readonly session: Buffer | undefined; readonly reused: boolean }> =>
    new Promise((resolve, reject) => {
      let ticket = session;
      let head = '';
      const socket = connectTls(
        {
          host: 'localhost',
          port: admin.port,
          ca: ca.pem,
          maxVersion,
          ...shown,
          ...(session && { session }),
        },
        () =>
          void socket.write('GET /admin/v1/grants HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n'),
      );
      let reused = false;
      socket.on('session', (next: Buffer) => {
        ticket = next;
      });
      socket.on('secureConnect', () => {
        reused = socket.isSessionReused();
      });
      socket.on('data', (part: Buffer) => {
        head += part.toString('latin1');
      });
      socket.on('error', reject).on('close', () => resolve({ head, session: ticket, reused }));
    });
  try {
    for (const version of ['TLSv1.2', 'TLSv1.3'] as const)
      for (const shown of [{ cert: stranger.pem, key: stranger.keyPem }, {}]) {
        const first = await ask(version, shown);
        expect(first.head).toMatch(/^HTTP\/1\.1 401 /);
        const again = await ask(version, shown, first.session);
        // The administration gives out no tickets: each connection proves anew who it is.
        expect(again.reused).toBe(false);
        expect(again.head).toMatch(/^HTTP\/1\.1 401 /);
      }
    expect(acts).toBe(0);
  } finally {
    await admin.close();
  }
});

test('an IPv6 network of 64 bits has one budget and shares it with no other, however it is spelled', () => {
  const same = ['2001:db8:0:7::1', '2001:DB8:0:7:a:b:c:d', '2001:0db8:0000:0007::', '2001:db8:0:7:0:0:0:2'];
  expect(new Set(same.map(limitName)).size).toBe(1);
  const others = ['2001::7:1:2:3:4', '2001::8:1:2:3:4', '2001::1', '::1', '2001:db8::1'];
  expect(new Set(others.map(limitName)).size).toBe(others.length);
});

test('refusals that strangers cause do not block what must be recorded; what must be recorded itself does', async () => {
  const gate = Promise.withResolvers<void>();
  const outbox = createOutbox<string>({
    deliver: () => gate.promise,
    most: 4,
    batch: 1,
    isLesser: (item) => item.startsWith('refused'),
  });
  for (let at = 0; at < 20; at += 1) outbox.put(`refused ${at}`);
  expect(outbox.pending()).toBe(4);
  expect(outbox.isBlocked()).toBe(false);
  for (let at = 0; at < 4; at += 1) outbox.put(`issued ${at}`);
  expect(outbox.isBlocked()).toBe(true);
  gate.resolve();
  await outbox.close(5_000);
});

test('odd words to the standard face and to the pages are refused by name: none is a failure of ours, none gives a token', async () => {
  const house = await openHouse((settings) => ({
    ...settings,
    introspection: { access: [{ identities: [ALICE] }] },
    limits: { rates: { ...settings.limits?.rates, introspect: 'off' } },
  }));
  try {
    const { access_token: access, refresh_token: refresh } = await house.grant();
    const steps = oauthSteps(house);
    const odd = [
      '\0',
      '__proto__',
      'constructor',
      '\u202e\u0000\ufeff',
      '😀'.repeat(400),
      'x'.repeat(15_000),
      `${access}\0`,
      `${access}=`,
      `${refresh}.`,
      `ghr_${'A'.repeat(64)}`,
      `${'A'.repeat(61)}A==`,
      '='.repeat(64),
      'files:read;;',
      'files:'.repeat(500),
      'a '.repeat(3_000),
      '{"a":1}',
    ];
    const names = [
      'grant_type',
      'client_id',
      'refresh_token',
      'device_code',
      'scope',
      'token',
      'token_type_hint',
    ];
    const sound: Readonly<Record<string, Record<string, string>>> = {
      token: { grant_type: 'client_credentials', client_id: 'report-runner' },
      device_authorization: { client_id: 'report-runner', scope: 'files:read' },
      revoke: { token: 'nothing' },
      introspect: { token: 'nothing' },
    };
    const answers: string[] = [];
    for (const [operation, fields] of Object.entries(sound))
      for (const name of names)
        for (const value of odd) {
          const grantType = {
            refresh_token: 'refresh_token',
            device_code: 'urn:ietf:params:oauth:grant-type:device_code',
          }[name];
          const { status, text } = await steps.post(
            operation,
            { ...fields, ...(grantType !== undefined && { grant_type: grantType }), [name]: value },
            { as: house.people.alice },
          );
          if (status >= 500) answers.push(`${operation} ${name} ${value.slice(0, 40)}: ${status}`);
          if (grantType !== undefined && operation === 'token') expect(text).not.toContain('access_token');
        }
    for (const value of odd)
      for (const path of [
        '/authsvc/device?user_code=',
        '/authsvc/device/grants?after=',
        '/authsvc/device/openid/x?state=',
        '/authsvc/device?language=',
      ]) {
        const { status } = await house.ask({
          path: `${path}${encodeURIComponent(value).slice(0, 4_000).replace(/%.?$/, '')}`,
        });
        if (status >= 500) answers.push(`${path} ${value.slice(0, 40)}: ${status}`);
      }
    for (const type of [
      'text/plain',
      'application/json',
      'multipart/form-data; boundary=x',
      'constructor',
      '__proto__',
      '',
    ])
      for (const operation of Object.keys(sound)) {
        const { status } = await steps.post(operation, 'token=a&token=b', {
          headers: { 'content-type': type },
        });
        if (status !== 400) answers.push(`${operation} ${type}: ${status}`);
      }
    expect(answers).toEqual([]);
    expect(
      house.log.filter(({ event }) => /unexpected_error|page_failed|failed_to|dependency_failed/.test(event)),
    ).toEqual([]);
    // All of that was somebody else's: the grant is as it was.
    expect((await house.api('/files/a', access)).status).toBe(200);
  } finally {
    await house.close();
  }
});

test('a yes to a device that was not collected before everything of the person was ended is worth nothing; a later yes is', async () => {
  const house = await openHouse();
  try {
    const device = deviceSteps(house);
    const [phished, mine] = [await device.ask(), await device.ask()];
    await device.walk(phished);
    const { store } = house.gateway;
    await endAllOf({ store, now: () => house.clock.now() }, { of: 'identity', identity: ALICE }, 86_400);
    house.clock.advance(2);
    const late = await device.exchange(phished.device_code);
    expect(late.status).toBe(400);
    expect(late.text).not.toContain('access_token');
    expect((await device.walk(mine)).status).toBe(200);
    expect((await device.exchange(mine.device_code)).status).toBe(200);
  } finally {
    await house.close();
  }
});

test('client_credentials keeps to the limit of what is given for certificates, which the other face has', async () => {
  const house = await openHouse((settings) => ({
    ...settings,
    limits: { rates: { ...settings.limits?.rates, certificate: '1/m' } },
  }));
  try {
    const steps = oauthSteps(house);
    expect((await steps.clientCredentials()).status).toBe(200);
    const second = await steps.clientCredentials();
    expect(second.status).toBe(429);
    expect(second.headers['retry-after']).toMatch(/^\d+$/);
  } finally {
    await house.close();
  }
});

test('what an operator ended stays ended, also when the settings have made grants shorter since they were given', async () => {
  const house = await openHouse((settings) => ({ ...settings, tokens: { grantLifetime: '90d' } }));
  try {
    const { refresh_token: kept } = await house.grant();
    await house.reload((settings) => ({ ...settings, tokens: { grantLifetime: '2h' } }));
    const token = readFileSync(join(house.folder, 'data/admin-token'), 'utf8').trim();
    const ended = await fetch(`http://127.0.0.1:${house.adminPort}/admin/v1/revoke`, {
      method: 'POST',
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      body: JSON.stringify({ identity: ALICE }),
    });
    expect(ended.status).toBe(200);
    for (const days of [1, 3, 60]) {
      house.clock.advance(days * 86_400);
      const reply = await house.refresh(kept);
      expect(reply.status, `after ${days} days more`).toBe(400);
      expect(reply.text).not.toContain('access_token');
    }
  } finally {
    await house.close();
  }
});

test('an OpenID issuer that speaks for everybody’s tenants is refused', async () => {
  const house = await openHouse();
  const withIssuer = (issuer: string): void =>
    void settingsIn(house.folder, {
      ...baseSettings(1),
      signIn: {
        openid: {
          works: { title: 'Works', issuer, clientId: 'x', directory: 'staff', claim: 'oid', means: 'id' },
        },
      },
    });
  try {
    const host = 'https://login.microsoftonline.com';
    for (const path of ['/common/v2.0', '/organizations/v2.0', '//COMMON/v2.0', ':443/consumers'])
      expect(() => withIssuer(`${host}${path}`), path).toThrow(/must name your tenant/);
    expect(() => withIssuer(`${host}/5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11/v2.0`)).not.toThrow();
  } finally {
    await house.close();
  }
});
