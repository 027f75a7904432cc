import { readFileSync } from 'node:fs';
import { connect, Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { expect, onTestFinished, test, vi } from 'vitest';
import { startGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';

/** `timer_active` of a connection in /proc/net/tcp: 2 is keep-alive, 0 is none (proc_net_tcp.rst). */
function readTimer(localPort: number, remotePort: number): string | undefined {
  const toHex = (port: number): string => port.toString(16).toUpperCase().padStart(4, '0');
  for (const line of readFileSync('/proc/net/tcp', 'utf8').split('\n')) {
    const [, local, remote, , , timer] = line.trim().split(/\s+/);
    if (local?.endsWith(`:${toHex(localPort)}`) && remote?.endsWith(`:${toHex(remotePort)}`)) return timer?.slice(0, 2);
  }
  return undefined;
}

test.runIf(process.platform === 'linux')(
  'connections of clients, and those to an upstream, are checked with TCP keep-alive while they are silent',
  async () => {
    const setKeepAlive = vi.spyOn(Socket.prototype, 'setKeepAlive');
    onTestFinished(() => setKeepAlive.mockRestore());
    const gateway = await startGateway();
    onTestFinished(() => gateway.close());
    const client = connectTls({
      port: gateway.port,
      host: '127.0.0.1',
      ca: gateway.ca.pem,
      servername: 'localhost',
    });
    onTestFinished(() => void client.destroy());
    let text = '';
    client.on('data', (part: Buffer) => (text += part.toString()));
    client.write('GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n');
    await until('the response has arrived', () => text.includes('200 OK'));
    const clientPort = client.localPort ?? 0;
    // While data is in flight, the timer is that of the retransmission.
    await until('the client is checked', () => readTimer(gateway.port, clientPort) === '02');

    const { port } = gateway.upstream;
    const findUpstreamTimers = (): readonly string[] =>
      readFileSync('/proc/net/tcp', 'utf8')
        .split('\n')
        .map((line) => line.trim().split(/\s+/))
        .filter(([, , remote]) => Number.parseInt(remote?.split(':')[1] ?? '', 16) === port)
        .map(([, , , , , timer]) => timer?.slice(0, 2) ?? '');
    await until('the upstream is checked', () => findUpstreamTimers().includes('02'));

    // The test itself does not set it: the timers above are the gateway's.
    const plain = connect(port, '127.0.0.1');
    onTestFinished(() => void plain.destroy());
    await until('it is connected', () => plain.localPort !== undefined && !plain.connecting);
    await until('its timer is off', () => readTimer(plain.localPort ?? 0, port) === '00');
    expect(readTimer(clientPort, gateway.port)).toBe('00');

    // A network that is down for some seconds ends no stream. What the kernel uses cannot be read from /proc.
    const [gone] = setKeepAlive.mock.calls.filter(([, initialDelay]) => initialDelay === 60_000);
    expect(gone).toEqual([true, 60_000, 10_000, 6]);
  },
);
