import { createServer } from 'node:http';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createCrl, der } from '../support/pki.ts';
import {
  connect,
  createServeFolder,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';
import { listenTcp } from '../support/tcp-server.ts';

/** Responses of CRL servers, or of attackers on the way to them: http is allowed, because lists are signed. */

const MIB = 1_048_576;
const EMPTY_BLOCK = '-----BEGIN X509 CRL-----\n-----END X509 CRL-----\n';

const fill = (size: number, text: string): Buffer => Buffer.alloc(size - (size % text.length), text);

/** What is expected of each. */
const DOCUMENTS = {
  'line-feeds': /line \d{8} is neither a BEGIN nor an END line/,
  'empty-blocks': /is not a revocation list/,
  'short-lines': /contains no revocation list/,
  'nested-elements': /is not a revocation list/,
  'many-elements': /too many elements/,
  'many-copies': /contains more than 1,000 revocation lists/,
  'too-long': /longer than \d+ KiB/,
} as const;

async function startCrlServer(documents: Readonly<Record<string, () => Buffer>>) {
  const http = createServer(({ url = '' }, response) => {
    response.setHeader('content-type', 'application/pkix-crl').end(documents[url.slice(1)]?.());
  });
  const { port, close } = await listenTcp(http);
  return {
    url: (name: string) => `http://127.0.0.1:${port}/${name}`,
    close: () => {
      http.closeAllConnections();
      return close();
    },
  };
}

export function testHostileCrlServers(mib: number): void {
  const size = mib * MIB;
  let folder: ServeFolder;
  let server: ServeProcess;
  let crlServer: Awaited<ReturnType<typeof startCrlServer>>;

  beforeAll(async () => {
    folder = await createServeFolder();
    const { pem } = await createCrl(folder.ca);
    crlServer = await startCrlServer({
      'line-feeds': () => Buffer.concat([Buffer.alloc(size - 24, '\n'), Buffer.from('-----BEGIN X509 CRL---xx')]),
      'empty-blocks': () => fill(size, EMPTY_BLOCK),
      'short-lines': () => fill(size, 'x----\n'),
      'nested-elements': () => Buffer.alloc(size, Buffer.from([0x30, 0x80])),
      'many-elements': () =>
        der(0x30, der(0x30, Buffer.alloc(size - 32, Buffer.from('0500', 'hex'))), Buffer.from('3000030100', 'hex')),
      'many-copies': () => fill(size, pem),
      'too-long': () => Buffer.alloc(size + 1, '\n'),
      'some-copies': () => Buffer.from(pem.repeat(900)),
    });
    folder.configure((settings) => ({
      ...settings,
      certificates: {
        ...settings.certificates,
        crls: [...Object.keys(DOCUMENTS), 'some-copies'].map((name) => ({
          url: crlServer.url(name),
          maxSize: size,
          timeout: '5m',
        })),
      },
    }));
    // Less than Node chooses at the memory limit of the chart.
    server = await startServe(folder, { nodeOptions: ['--max-old-space-size=96'] });
  }, 120_000);
  afterAll(async () => {
    await server?.stop();
    await folder?.remove();
    await crlServer?.close();
  });

  test.each(Object.entries(DOCUMENTS))(
    `X15 a response of ${mib} MiB (%s) is refused, and the process continues`,
    async (name, message) => {
      const failure = await until(
        `${name} was refused`,
        () => server.log.find((line) => line.event === 'crl_fetch_failed' && line['url'] === crlServer.url(name)),
        300,
      );
      expect(String(failure['error'])).toMatch(message);
      const { status } = await connect(folder, server.port).request({ path: '/public/x' });
      expect(status).toBeLessThan(500);
    },
    310_000,
  );

  test('X15 of several copies of a list, one is kept', async () => {
    const metric = `gatehouse_crl_fetches_total{url="${crlServer.url('some-copies')}",outcome="success"} 1`;
    await until('the list was loaded', async () => {
      const metrics = await (await fetch(`http://127.0.0.1:${server.adminPort}/metrics`)).text();
      return metrics.includes(metric);
    });
    expect(server.log.filter(({ event }) => event === 'uncaught_exception')).toEqual([]);
  });
}
