import { createHash } from 'node:crypto';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, onTestFinished, test } from 'vitest';
import { startProxyHarness } from '../support/proxy-harness.ts';
import { connectRawTls } from '../support/raw-client.ts';
import { until } from '../support/until.ts';

const FIRST = 8;
const SECOND = 40;
const createBody = (index: number): string => `${index}:`.padEnd(3_000 + index * 97, `<${index}>`);
const hash = (text: string): string => createHash('sha256').update(text).digest('hex');
const createRequest = (index: number): string => {
  const body = createBody(index);
  return `POST /files/${index} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer A\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
};
const range = (from: number, to: number): number[] => Array.from({ length: to - from }, (_, index) => from + index);

test('pipelined requests over TLS behind a pending response: each body arrives unchanged, and each request gets its response', async () => {
  const received = new Map<number, string>();
  const release = Promise.withResolvers<void>();
  const upstream = createServer((request, response) => {
    const parts: Buffer[] = [];
    request.on('data', (part: Buffer) => parts.push(part));
    request.on('end', () => {
      const index = Number(request.url?.split('/').pop());
      received.set(index, hash(Buffer.concat(parts).toString('latin1')));
      const respond = (): unknown => response.end(`${index} `.padEnd(30_000, '.'));
      if (index === 0) void release.promise.then(respond);
      else respond();
    });
  }).listen(0, '127.0.0.1');
  onTestFinished(() => void upstream.close());
  await new Promise((resolve) => upstream.once('listening', resolve));
  const harness = await startProxyHarness({
    upstream: `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`,
    tls: true,
  });
  onTestFinished(() => harness.close());
  const client = await connectRawTls(harness.port, harness.ca.pem);
  onTestFinished(() => client.destroy());
  client.send(range(0, FIRST).map(createRequest).join(''));
  // A request is forwarded after the previous one has its response.
  await until('the upstream has the first request', () => received.size === 1);
  client.send(range(FIRST, SECOND).map(createRequest).join(''));
  release.resolve();
  const text = await client.until((all) => all.length > SECOND * 30_000);
  const altered = [...received].filter(([index, digest]) => digest !== hash(createBody(index)));
  const statuses = [...text.matchAll(/HTTP\/1\.1 (\d+)/g)].map(([, status]) => status);
  expect({ altered, statuses, received: received.size }).toEqual({
    altered: [],
    statuses: range(0, SECOND).map(() => '200'),
    received: SECOND,
  });
});
