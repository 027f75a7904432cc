import { writeFileSync } from 'node:fs';
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https';
import { join } from 'node:path';
import type { Agent } from 'undici';
import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest';
import { startGatewayWithAdminTls } from '../support/console-certificates.ts';
import { createAgent, FormBrowser } from '../support/form-browser.ts';
import { createCa, der, type IssuedCertificate, issue } from '../support/pki.ts';
import type { TestGateway } from '../support/test-gateway.ts';

/** Sessions that began with a certificate, on connections that outlive its validity. */
let gateway: TestGateway;
let ca: IssuedCertificate;
let operator: IssuedCertificate;
const agents: (Agent | HttpsAgent)[] = [];

beforeAll(async () => {
  ca = await createCa();
  operator = await issue(ca, { commonName: 'olivia' });
  gateway = await startGatewayWithAdminTls(ca, ['CN=olivia,O=Example']);
});
afterEach(async () => {
  for (const agent of agents.splice(0)) await agent.destroy();
});
afterAll(() => gateway?.close());

const browse = (certificate?: IssuedCertificate): FormBrowser => {
  const agent = createAgent({ ca: ca.pem, certificate });
  agents.push(agent);
  return new FormBrowser({ agent, base: `https://localhost:${gateway.adminPort}` });
};

const signIn = async (certificate: IssuedCertificate): Promise<FormBrowser> => {
  const browser = browse(certificate);
  await browser.open('/console');
  expect((await browser.submit('/console/certificate')).status).toBe(200);
  return browser;
};

/** Requests on one connection; rejects when that connection is closed. */
function keepConnection(certificate: IssuedCertificate, cookie: string) {
  const agent = new HttpsAgent({ keepAlive: true, maxSockets: 1 });
  agents.push(agent);
  let port: number | undefined;
  return (path: string, headers: Record<string, string> = {}): Promise<number> =>
    new Promise((resolve, reject) => {
      const outgoing = httpsRequest(
        {
          agent,
          host: 'localhost',
          port: gateway.adminPort,
          path,
          ca: ca.pem,
          cert: certificate.pem,
          key: certificate.keyPem,
          headers: { cookie, ...headers },
        },
        (response) => {
          const { localPort } = response.socket;
          port ??= localPort;
          response.resume().on('end', () => {
            if (localPort === port) resolve(response.statusCode ?? 0);
            else reject(new Error('another connection'));
          });
        },
      );
      outgoing.on('error', reject).end();
    });
}

test('a certificate that expires ends its session and its access to the admin API, also on an open connection', async () => {
  const shortLived = await issue(ca, { commonName: 'olivia', notAfter: new Date(Date.now() + 1_200_000) });
  const { cookie } = await signIn(shortLived);
  const send = keepConnection(shortLived, cookie);
  expect([await send('/console'), await send('/admin/v1/grants')]).toEqual([200, 200]);
  // Less than the idle time of a session.
  vi.useFakeTimers({ toFake: ['Date'], now: Date.now() + 1_300_000 });
  try {
    expect([await send('/console'), await send('/admin/v1/grants')]).toEqual([303, 401]);
  } finally {
    vi.useRealTimers();
  }
});

test('a CA that is replaced ends the sessions of its certificates: open connections are closed', async () => {
  const { cookie } = await signIn(operator);
  const send = keepConnection(operator, cookie);
  const withoutCertificate = browse();
  expect((await withoutCertificate.get('/livez')).status).toBe(200);
  expect(await send('/console')).toBe(200);
  const file = join(gateway.folder, 'admin/ca.pem');
  const replaceCa = async (pem: string): Promise<void> => {
    writeFileSync(file, pem);
    await gateway.reload((settings) => settings);
  };
  await replaceCa((await createCa()).pem);
  try {
    await expect(send('/console')).rejects.toThrow();
    expect(await keepConnection(operator, cookie)('/console')).toBe(303);
    expect(await keepConnection(operator, cookie)('/admin/v1/grants')).toBe(401);
  } finally {
    await replaceCa(ca.pem);
  }
  expect(await keepConnection(operator, cookie)('/console')).toBe(200);
});

test('a subject with line breaks, commas or several attributes in one does not become an operator', async () => {
  const attribute = (oid: string, text: string): Buffer =>
    der(0x31, der(0x30, Buffer.from(oid, 'hex'), der(0x0c, Buffer.from(text))));
  const [CN, O] = ['0603550403', '060355040a'];
  const subjects = {
    'line break': der(0x30, attribute(O, 'Example\nCN=olivia')),
    comma: der(0x30, attribute(CN, 'olivia,O=Example')),
    plus: der(0x30, attribute(CN, 'olivia+O=Example')),
    order: der(0x30, attribute(CN, 'olivia'), attribute(O, 'Example')),
    more: der(0x30, attribute(O, 'Example'), attribute(CN, 'olivia'), attribute(CN, 'olivia')),
    real: der(0x30, attribute(O, 'Example'), attribute(CN, 'olivia')),
  };
  const roles: Record<string, boolean> = {};
  for (const [name, subjectDer] of Object.entries(subjects)) {
    const browser = browse(await issue(ca, { subjectDer }));
    await browser.open('/console');
    roles[name] = !(await browser.submit('/console/certificate')).text.includes('read-only');
  }
  expect(roles).toEqual({
    'line break': false,
    comma: false,
    plus: false,
    order: false,
    more: false,
    real: true,
  });
});

test('control and bidirectional characters in the subject of a certificate are not shown', async () => {
  const subject = der(
    0x30,
    der(0x31, der(0x30, Buffer.from('0603550403', 'hex'), der(0x0c, Buffer.from('eve\u202egnp.\u0007<u>\u2066x')))),
  );
  const browser = browse(await issue(ca, { subjectDer: subject }));
  const pages = [await browser.open('/console'), await browser.submit('/console/certificate')];
  pages.push(await browser.get('/console/audit?q=console_sign_in'));
  for (const { text } of pages) {
    expect(text).not.toMatch(/[\u202a-\u202e\u2066-\u2069\u0007]|<u>/);
    expect(text).toContain('eve');
  }
});
