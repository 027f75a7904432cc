import { connect } from 'node:net';
import { createServer } from 'node:tls';
import { createCa, issueServer } from '../../support/pki.ts';
import { listenTcp } from '../../support/tcp-server.ts';
import { tempFolder } from '../../support/temp-folder.ts';

export interface TlsProxy {
  /** `https://…`; `ca` is the file with its CA. */
  readonly url: string;
  readonly ca: string;
  close(): Promise<void>;
}

/** Puts TLS in front of an upstream; each TLS connection is relayed to its own plain connection. */
export async function startTlsProxy(port: number): Promise<TlsProxy> {
  const ca = await createCa();
  const identity = await issueServer(ca);
  const folder = tempFolder('tls-front');
  const server = createServer({ cert: identity.pem, key: identity.keyPem }, (secure) => {
    const plain = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
    for (const [source, target] of [
      [secure, plain],
      [plain, secure],
    ] as const) {
      source.on('error', () => target.destroy());
      source.pipe(target);
    }
    secure.on('close', () => plain.destroy());
    plain.on('close', () => secure.destroySoon());
  });
  const { port: tlsPort, close } = await listenTcp(server);
  return {
    url: `https://127.0.0.1:${tlsPort}`,
    ca: folder.write('ca.pem', ca.pem),
    async close() {
      await close();
      folder.remove();
    },
  };
}
