import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type IssuedCertificate, issueServer } from './pki.ts';
import { startGateway, type TestGateway } from './test-gateway.ts';

/** A gateway whose admin listener has TLS and accepts client certificates of the CA. `operators`: subjects of operators. */
export async function startGatewayWithAdminTls(
  ca: IssuedCertificate,
  operators: readonly string[],
): Promise<TestGateway> {
  const server = await issueServer(ca);
  return startGateway(
    (settings) => ({
      ...settings,
      admin: {
        port: 0,
        tls: {
          certificate: 'admin/server.pem',
          key: 'admin/key.pem',
          clientCa: 'admin/ca.pem',
          operators: [...operators],
        },
      },
    }),
    (folder) => {
      mkdirSync(join(folder, 'admin'));
      writeFileSync(join(folder, 'admin/server.pem'), server.pem);
      writeFileSync(join(folder, 'admin/key.pem'), server.keyPem, { mode: 0o600 });
      writeFileSync(join(folder, 'admin/ca.pem'), ca.pem);
    },
  );
}
