import { readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { expect, onTestFinished, test } from 'vitest';
import { createCrl } from '../support/pki.ts';
import { createServeFolder, startServe, until } from '../support/serve-process.ts';
import { listenTcp } from '../support/tcp-server.ts';

const SIZE = 64 * 1_048_576;
/** The memory limit of a gateway in the chart. */
const LIMIT_MIB = 512;

const fill = (text: string): Buffer => Buffer.alloc(SIZE - (SIZE % text.length), text);

test.runIf(process.platform === 'linux').each([
  ['line feeds', () => Buffer.concat([Buffer.alloc(SIZE - 16, '\n'), Buffer.from('-----BEGIN X----')])],
  ['empty PEM blocks', () => fill('-----BEGIN X509 CRL-----\n-----END X509 CRL-----\n')],
  ['copies of a list', (pem: string) => fill(pem)],
])(
  'X15 the largest response of a CRL server (%s) is refused within the memory limit of the chart',
  async (_what, createDocument) => {
    const folder = await createServeFolder();
    onTestFinished(() => folder.remove());
    const document = createDocument((await createCrl(folder.ca)).pem);
    const crlServer = createServer((_request, response) => void response.end(document));
    const { port, close } = await listenTcp(crlServer);
    onTestFinished(close);
    folder.configure((settings) => ({
      ...settings,
      certificates: {
        ...settings.certificates,
        crls: [{ url: `http://127.0.0.1:${port}/ca.crl`, maxSize: '64MiB', timeout: '5m' }],
      },
    }));
    const server = await startServe(folder);
    onTestFinished(() => server.kill());
    await until('it was refused', () => server.log.some(({ event }) => event === 'crl_fetch_failed'));
    const status = readFileSync(`/proc/${server.pid}/status`, 'utf8');
    expect(Number(/VmHWM:\s+(\d+)/.exec(status)?.[1]) / 1_024).toBeLessThan(LIMIT_MIB);
  },
  90_000,
);
