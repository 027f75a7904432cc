import { once } from 'node:events';
import { createServer, type RequestListener } from 'node:http';
import { createServer as createSecureServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { createCa, issueServer } from './pki.ts';
import type { TestUpstreamSettings } from './proxy-harness.ts';
import { tempFolder } from './temp-folder.ts';

/** Starts an upstream over HTTP, or over TLS with a certificate of a new CA. */
export async function startHttpUpstream(listener: RequestListener, isSecure: boolean) {
  const ca = await createCa();
  const certificate = await issueServer(ca);
  const folder = tempFolder();
  const server = isSecure
    ? createSecureServer({ cert: certificate.pem, key: certificate.keyPem }, listener)
    : createServer(listener);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const settings: TestUpstreamSettings = isSecure
    ? { ca: folder.write('ca.pem', ca.pem), serverName: 'localhost' }
    : {};
  return {
    url: `${isSecure ? 'https' : 'http'}://127.0.0.1:${port}`,
    settings,
    close(): void {
      server.closeAllConnections();
      server.close();
      folder.remove();
    },
  };
}
