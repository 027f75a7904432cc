import { afterAll, beforeAll, expect, test } from 'vitest';
import { createShop, gatewayValues, redisStore, type Shop, startGateway } from './shop.ts';

let shop: Shop;
beforeAll(async () => {
  shop = await createShop('contexts');
});
afterAll(() => shop?.remove());

test('an arbitrary user id without an entry in /etc/passwd works, as clusters that assign ids require', async () => {
  const id = 1_000_650_000;
  await startGateway(shop, {
    ...gatewayValues(shop.namespace),
    ...redisStore(shop.namespace),
    podSecurityContext: { runAsUser: id, runAsGroup: id, fsGroup: id },
    securityContext: { runAsUser: id, runAsGroup: id },
  });
  const script =
    "const fs=require('node:fs');let written='no';try{fs.writeFileSync('/opt/x','');written='yes'}catch{};console.log(process.getuid(),written)";
  const facts = await shop.kubectl(`exec deploy/gate-gatehouse -- /usr/local/bin/node -e "${script}"`);
  expect(facts.trim()).toBe(`${id} no`);
  const client = await shop.connect('gate-gatehouse');
  const { access_token } = await client.grant();
  expect((await client.get('/files/a', access_token)).status).toBe(200);
});

test('a pod that violates the restricted Pod Security Standard is refused in these namespaces', async () => {
  const overrides = JSON.stringify({ spec: { containers: [{ name: 'root', image: 'localhost/api:1' }] } });
  const { code, stderr } = await shop.shell.attempt(
    `kubectl -n contexts run root --image=localhost/api:1 --overrides='${overrides}'`,
  );
  expect(code).not.toBe(0);
  expect(stderr).toContain('violates PodSecurity "restricted');
});
