import { connect as connectTcp } from 'node:net';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import {
  commandsInNotes,
  createApplication,
  createShop,
  type Shop,
  serviceFor,
  sidecarValues,
  waitForPods,
} from './shop.ts';

let shop: Shop;
beforeAll(async () => {
  shop = await createShop('sidecar');
});
afterAll(() => shop?.remove());

/** Whether a client in the cluster can connect to a port. */
const canConnect = (host: string, port: number): Promise<boolean> =>
  new Promise((resolve) => {
    const socket = connectTcp({ host, port, timeout: 5_000 });
    const finish = (connected: boolean): void => {
      socket.destroy();
      resolve(connected);
    };
    socket.once('connect', () => finish(true));
    socket.once('error', () => finish(false)).once('timeout', () => finish(false));
  });

describe.each([
  { name: 'a native sidecar container', application: 'orders', native: true },
  { name: 'a plain container', application: 'invoices', native: false },
])('a sidecar as $name', ({ application, native }) => {
  const release = `${application}-gate`;

  test('is added to an application that knows nothing of it, as the notes say', async () => {
    // The application already runs, and listens on all addresses.
    await shop.apply(createApplication(application), serviceFor(application, 8_080));
    await shop.kubectl(`rollout status deployment/${application} --timeout=120s`);
    const notes = await shop.install(release, sidecarValues(shop.namespace, application, { native }));
    const commands = commandsInNotes(notes);
    expect(commands.length).toBe(2);
    for (const command of commands) await shop.shell.run(command.replace('YOUR-APPLICATION', application));
    await shop.kubectl(`rollout status deployment/${application} --timeout=180s`);
    const kind = native ? 'initContainers' : 'containers';
    const names = await shop.kubectl(`get deployment ${application} -o jsonpath={.spec.template.spec.${kind}[*].name}`);
    expect(names).toContain('gatehouse');
    await waitForPods(shop, `app=${application}`, 2);
  });

  test('checks the requests of the application’s clients', async () => {
    const client = await shop.connect(`${release}-gatehouse`);
    expect((await client.get('/files/a')).status).toBe(401);
    const { access_token } = await client.grant();
    const reply = await client.get('/files/a', access_token);
    expect(reply.status, reply.text).toBe(200);
    expect(String(reply.json['pod'])).toMatch(new RegExp(`^${application}-`));
    expect((await client.get('/other', access_token)).status).toBe(404);
  });

  test('is the only way in once the application listens on the loopback interface', async () => {
    const before = await waitForPods(shop, `app=${application}`, 2);
    // No network plugin enforces the chart's NetworkPolicy in this cluster.
    for (const { address } of before) expect(await canConnect(address, 8_080)).toBe(true);
    await shop.kubectl(
      `patch deployment ${application} --type=strategic -p '${JSON.stringify({
        spec: {
          template: {
            spec: {
              containers: [{ name: 'orders', args: ['api', '127.0.0.1:8080'], readinessProbe: null }],
            },
          },
        },
      })}'`,
    );
    await shop.kubectl(`rollout status deployment/${application} --timeout=180s`);
    const pods = await waitForPods(shop, `app=${application}`, 2);
    for (const { address } of pods) {
      expect(await canConnect(address, 8_443)).toBe(true);
      expect(await canConnect(address, 8_080)).toBe(false);
    }
    const service = await shop.addressOf(application);
    expect(await canConnect(service, 8_080)).toBe(false);
    const client = await shop.connect(`${release}-gatehouse`);
    const { access_token } = await client.grant();
    expect((await client.get('/files/a', access_token)).status).toBe(200);
    expect((await client.get('/files/a')).status).toBe(401);
  });

  test('has a NetworkPolicy that admits only gatehouse’s port', async () => {
    const ports = await shop.kubectl(
      `get networkpolicy ${release}-gatehouse -o jsonpath={.spec.ingress[*].ports[*].port}`,
    );
    expect(ports).toBe('8443');
  });
});
