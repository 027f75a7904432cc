import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { type Client, type ClientOptions, createClient, serviceAccountToken } from '../../src/client/index.ts';
import { runCommand } from '../support/command-in-process.ts';
import type { CommandResult } from '../support/command-line.ts';
import { createShapedIssuers, type ShapedIssuer, writeKeySets } from '../support/foreign-tokens.ts';
import { type TempFolder, tempFolder } from '../support/temp-folder.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';

/** A pod with a projected service account token, and nothing else. */
let gateway: TestGateway;
let cluster: ShapedIssuer;
let pod: TempFolder;
const clients: Client[] = [];
beforeAll(async () => {
  ({ cluster } = await createShapedIssuers());
  gateway = await startGateway(
    (settings) => ({
      ...settings,
      trustedIssuers: { cluster: cluster.settings },
      integrations: [
        ...(settings.integrations ?? []),
        {
          clientId: 'jobs',
          scope: 'files:read;reports:write',
          exchange: [{ issuer: 'cluster', subject: 'system:serviceaccount:shop:*', once: true }],
        },
      ],
    }),
    (folder) => writeKeySets(folder, { cluster }),
  );
  pod = tempFolder('pod');
  pod.write('ca.pem', gateway.ca.pem);
});
afterEach(async () => {
  for (const client of clients.splice(0)) await client.close();
});
afterAll(async () => {
  await gateway.close();
  pod.remove();
});

/** Kubernetes replaces the file before the token expires. */
const mountToken = async (claims: Readonly<Record<string, unknown>> = {}): Promise<void> =>
  writeFileSync(join(pod.path, 'token'), `${await cluster.sign(claims)}\n`);

function createPodClient(more: Partial<ClientOptions> = {}): Client {
  const client = createClient({
    url: `https://localhost:${gateway.port}`,
    ca: gateway.ca.pem,
    clientId: 'jobs',
    scope: 'files:read',
    subjectToken: serviceAccountToken(join(pod.path, 'token')),
    now: () => gateway.clock.now(),
    ...more,
  });
  clients.push(client);
  return client;
}

test('the client exchanges the token, reuses the result, and reads the file again when it expires', async () => {
  await mountToken();
  const client = createPodClient();
  const first = await client.token();
  expect(await client.token()).toBe(first);
  expect((await gateway.api('/files/1', first)).status).toBe(200);
  await mountToken();
  gateway.clock.advance(3_590);
  try {
    await mountToken({ exp: Math.floor(gateway.clock.now()) + 600 });
    const second = await client.token();
    expect(second).not.toBe(first);
    expect((await gateway.api('/files/1', second)).status).toBe(200);
  } finally {
    gateway.clock.advance(-3_590);
  }
});

test('a token that gatehouse refuses, a missing file and another content are reported without the content', async () => {
  await mountToken({ sub: 'system:serviceaccount:other:builder' });
  await expect(createPodClient().token()).rejects.toMatchObject({
    name: 'OAuthError',
    code: 'invalid_request',
  });
  writeFileSync(join(pod.path, 'token'), 'hunter2');
  await expect(createPodClient().token()).rejects.toThrow(/token does not contain a JWT$/);
  rmSync(join(pod.path, 'token'));
  await expect(createPodClient().token()).rejects.toThrow(/token cannot be read \(ENOENT\)$/);
});

const runToken = (args: readonly string[], env: Readonly<Record<string, string>> = {}): Promise<CommandResult> =>
  runCommand(['token', ...args], {
    env: { GATEHOUSE_HOME: '/nonexistent/read-only', ...env },
    cwd: pod.path,
  });

test('gatehouse token --service-account prints a token and stores nothing', async () => {
  const options = [
    '--service-account',
    '--url',
    `https://localhost:${gateway.port}`,
    '--client',
    'jobs',
    '--scope',
    'files:read',
    '--cacert',
    'ca.pem',
    '--token-file',
    'token',
  ];
  await mountToken();
  const printed = await runToken(options);
  expect(printed).toMatchObject({ code: 0, stderr: '' });
  expect((await gateway.api('/files/1', printed.stdout.trim())).status).toBe(200);
  await mountToken();
  const json = await runToken([...options, '--output', 'json']);
  expect(JSON.parse(json.stdout)).toMatchObject({ token_type: 'Bearer', scope: 'files:read' });
});

test('gatehouse token --service-account takes its options from the environment', async () => {
  const env = {
    GATEHOUSE_URL: `https://localhost:${gateway.port}`,
    GATEHOUSE_CLIENT: 'jobs',
    GATEHOUSE_SCOPE: 'files:read',
    GATEHOUSE_CACERT: 'ca.pem',
    GATEHOUSE_TOKEN_FILE: 'token',
  };
  await mountToken();
  expect(await runToken(['--service-account'], env)).toMatchObject({ code: 0, stderr: '' });
  const used = await runToken(['--service-account'], env);
  expect(used).toMatchObject({ code: 77, stdout: '' });
  expect(used.stderr).toMatch(/^gatehouse: .*already exchanged/);
  expect(await runToken(['--service-account'], { ...env, GATEHOUSE_TOKEN_FILE: 'missing' })).toMatchObject({
    code: 78,
    stdout: '',
  });
  expect(await runToken(['--service-account'])).toMatchObject({ code: 64, stdout: '' });
});
