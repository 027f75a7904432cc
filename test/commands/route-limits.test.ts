import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { runCommand } from '../support/command-in-process.ts';
import { testFolder } from '../support/configuration.ts';

const CONFIGURATION = `
publicUrl: https://gate.test
pages: { url: shared }
listen: { behindTls: true }
trustedProxies: [10.0.0.1]
integrations: [{ clientId: app, scope: "files:read", grants: [client], clientSecretHashes: ["sha256:${'A'.repeat(43)}"] }]
directories: { staff: { label: local, derive: true } }
upstreams: { default: { url: "http://127.0.0.1:9" } }
limits: { routes: 100/s }
routes:
  - { path: /open, public: true }
  - { path: /free, requires: files:read, rate: off }
  - { path: /files/**, requires: files:read, rate: [{ limit: 600/m, burst: 50, per: client }, { limit: 9/h, per: route }] }
`;

function run(command: string, ...args: string[]) {
  const file = join(testFolder(), 'gatehouse.yaml');
  writeFileSync(file, CONFIGURATION);
  return runCommand([command, '-c', file, ...args]);
}

test('explain shows the limits of the matching route', async () => {
  expect((await run('explain', 'GET', '/files/a')).stdout).toContain(
    '  at most 600/m per client, burst 50, and 9/h per route; further requests are rejected (429)\n',
  );
  expect((await run('explain', 'GET', '/open')).stdout).toContain('at most 100/s per address;');
  expect((await run('explain', 'GET', '/free')).stdout).not.toContain('at most');
  const { stdout } = await run('explain', 'GET', '/files/a', '--output', 'json');
  expect(JSON.parse(stdout)).toMatchObject({ limits: ['600/m per client, burst 50', '9/h per route'] });
});

test('check lists the limits of routes, and warns where they count other than expected', async () => {
  const { code, stdout, stderr } = await run('check');
  expect([code, stderr]).toEqual([0, '']);
  expect(stdout).toContain('note: at most 100/s per address: routes[0] /open\n');
  expect(stdout).toContain('note: at most 600/m per client, burst 50, and 9/h per route: routes[2] /files/**\n');
  const workers = await run('check', '--set', 'listen.workers=2');
  expect(workers.stderr).toContain('warning: limits.shared: is false, so each worker and each replica');
  expect((await run('check', '--set', 'listen.workers=2', '--set', 'limits.shared=true')).stderr).toBe('');
  const direct = await run('check', '--set', 'trustedProxies=[]');
  expect(direct.stderr).toContain('warning: trustedProxies: is empty, so limits per address');
});

test.each([
  ['routes[0].rate=[{ limit: 5/s, per: identity }]', /routes\[0\]\.rate .*needs a token, but the route is public/],
  ['routes[2].rate=0/s', /routes\[2\]\.rate/],
  ['routes[2].rate=[{ limit: off }]', /routes\[2\]\.rate/],
  ['routes[2].rate=[{ limit: 5/s, burst: 0 }]', /routes\[2\]\.rate/],
  ['routes[2].rate=[{ limit: 5/s, per: planet }]', /routes\[2\]\.rate/],
  ['routes[2].rate=[]', /routes\[2\]\.rate/],
])('%s is a configuration error', async (setting, problem) => {
  const { code, stderr } = await run('check', '--set', setting);
  expect(code).toBe(78);
  expect(stderr).toMatch(problem);
});
