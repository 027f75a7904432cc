import type { Socket } from 'node:net';
import { expect } from 'vitest';
import { recordFigures } from '../support/figures.ts';
import { respondOk } from '../support/recording-upstream.ts';
import { until } from '../support/serve-process.ts';
import type { AttackGateway } from './attack-gateway.ts';

const AT_ONCE = 50;

/** X12: `count` clients send part or all of a request and abort; the upstream responds to every second request only. */
export async function abortRequests(attack: AttackGateway, count: number): Promise<void> {
  const { upstream, gateway, token } = attack;
  const message = attack.write({ line: 'GET /files/1 HTTP/1.1' });
  const openSockets = new Set<Socket>();
  upstream.reset();
  upstream.respondWith((socket, request) => {
    if (upstream.requests.length % 2 === 0) respondOk(socket, request);
    else openSockets.add(socket);
  });
  let seed = 42;
  const random = (): number => {
    seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648;
    return seed / 2_147_483_648;
  };
  let completeRequests = 0;
  for (let sent = 0; sent < count; sent += AT_ONCE) {
    const clients = await Promise.all(Array.from({ length: AT_ONCE }, () => attack.client()));
    try {
      const received = upstream.requests.length;
      const complete = clients.filter((client) => {
        const bytes = message.slice(0, Math.ceil(random() * 1.5 * message.length));
        client.send(bytes);
        return bytes.length === message.length;
      });
      // On a busy machine, a handshake may take longer than it may.
      const countServed = (): number =>
        complete.filter((client) => client.closeKind() === undefined || client.text() !== '').length;
      await until(
        'the upstream has received all complete requests',
        () => upstream.requests.length - received === countServed(),
      );
      completeRequests += countServed();
    } finally {
      for (const client of clients) client.destroy();
    }
  }
  expect(openSockets.size).toBeGreaterThan(0);
  await until('upstream connections without a response are closed', () =>
    [...openSockets].every(({ destroyed }) => destroyed),
  );
  upstream.respondWith(respondOk);
  const responses = await Promise.all(Array.from({ length: 20 }, () => gateway.api('/files/next', token)));
  expect(responses.map(({ status }) => status)).toEqual(responses.map(() => 200));
  await attack.expectHealthy();
  recordFigures('aborted-requests', {
    'requests aborted at a random byte': count,
    'of these complete': completeRequests,
    'upstream connections left open': 0,
  });
}
