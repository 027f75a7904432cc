import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { type AddressInfo, connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createServer } from 'node:tls';
import { issueServer, makeCa } from '../support/pki.ts';

export interface TlsFront {
  /** `https://…`, and the file with the CA that vouches for it. */
  readonly url: string;
  readonly ca: string;
  close(): Promise<void>;
}

/** The same upstream behind TLS, byte for byte: each connection to it is a connection to the one behind. */
export async function tlsFront(port: number): Promise<TlsFront> {
  const ca = await makeCa();
  const own = await issueServer(ca);
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-'));
  const trusted = join(folder, 'ca.pem');
  writeFileSync(trusted, ca.pem);
  const open = new Set<{ destroy(): unknown }>();
  const server = createServer({ cert: own.pem, key: own.keyPem }, (secure) => {
    const plain = connect({ port, host: '127.0.0.1', allowHalfOpen: true });
    for (const [one, other] of [
      [secure, plain],
      [plain, secure],
    ] as const) {
      open.add(one);
      one.on('error', () => other.destroy()).on('close', () => open.delete(one));
      one.pipe(other);
    }
    secure.on('close', () => plain.destroy());
    plain.on('close', () => secure.destroySoon());
  });
  await new Promise<void>((resolve) => {
    server.listen(0, '127.0.0.1', resolve);
  });
  return {
    url: `https://127.0.0.1:${(server.address() as AddressInfo).port}`,
    ca: trusted,
    async close() {
      for (const one of open) one.destroy();
      await new Promise((resolve) => server.close(resolve));
      rmSync(folder, { recursive: true });
    },
  };
}
