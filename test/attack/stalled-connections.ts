import { once } from 'node:events';
import { connect } from 'node:net';
import { expect } from 'vitest';
import { until } from '../support/serve-process.ts';
import type { AttackGateway } from './attack-gateway.ts';

const createMany = <T>(count: number, make: () => Promise<T>): Promise<T[]> =>
  Promise.all(Array.from({ length: count }, make));

/** X01: `count` clients send their head byte by byte; all are disconnected, and another client is served meanwhile. */
export async function sendHeadsSlowly(attack: AttackGateway, count: number): Promise<void> {
  const slowClients = await createMany(count, () => attack.client());
  const timer = setInterval(() => {
    for (const client of slowClients) if (client.closeKind() === undefined) client.send('x');
  }, 200);
  try {
    for (const client of slowClients) client.send('GET /files/1 HTTP/1.1\r\nX-Slow: ');
    expect((await attack.gateway.api('/files/meanwhile', attack.token)).status).toBe(200);
    await Promise.all(slowClients.map((client) => client.closed()));
  } finally {
    clearInterval(timer);
    for (const client of slowClients) client.destroy();
  }
}

/** C20: `count` connections send no handshake or half of one; all are closed, and another client is served meanwhile. */
export async function stallHandshakes({ gateway }: Pick<AttackGateway, 'gateway'>, count: number): Promise<void> {
  const sockets = await createMany(count, async () => {
    const socket = connect(gateway.port, '127.0.0.1').on('error', () => {});
    await once(socket, 'connect');
    return socket.resume();
  });
  try {
    for (const socket of sockets.slice(count / 2)) socket.write(Buffer.from([0x16, 0x03, 0x01, 0x02, 0x00, 0x01]));
    for (let served = 0; served < 20; served += 1) expect((await gateway.api('/public/meanwhile')).status).toBe(200);
    await until('the gateway has closed all connections', () => sockets.every((socket) => socket.closed));
  } finally {
    for (const socket of sockets) socket.destroy();
  }
}
