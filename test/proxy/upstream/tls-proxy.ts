import { connect } from 'node:net';
import { createServer } from 'node:tls';
import { createCa, issueServer } from '../../support/pki.ts';
import { listenTcp } from '../../support/tcp-server.ts';
import { tempFolder } from '../../support/temp-folder.ts';

export interface TlsProxy {
  /** `https://…`, and the file with the CA that vouches for it. */
  readonly url: string;
  readonly ca: string;
  close(): Promise<void>;
}

/** The same upstream behind TLS, byte for byte: each connection to it is a connection to the one behind. */
export async function startTlsProxy(port: number): Promise<TlsProxy> {
  const ca = await createCa();
  const identity = await issueServer(ca);
  const folder = tempFolder('tls-front');
  const server = createServer({ cert: identity.pem, key: identity.keyPem }, (secure) => {
    const plain = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
    for (const [one, other] of [
      [secure, plain],
      [plain, secure],
    ] as const) {
      one.on('error', () => other.destroy());
      one.pipe(other);
    }
    secure.on('close', () => plain.destroy());
    plain.on('close', () => secure.destroySoon());
  });
  const { port: own, close } = await listenTcp(server);
  return {
    url: `https://127.0.0.1:${own}`,
    ca: folder.write('ca.pem', ca.pem),
    async close() {
      await close();
      folder.remove();
    },
  };
}
