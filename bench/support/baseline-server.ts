/**
 * The baseline for comparisons: a node:https server that reads a JSON POST body, makes one EdDSA signature with jose and
 * returns JSON of the same size. No store, no rules, no log.
 *
 *   node baseline-server.ts <folder>      prints its port
 */
import { generateKeyPairSync } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { SignJWT } from 'jose';

const [folder = ''] = process.argv.slice(2);
const key = generateKeyPairSync('ed25519').privateKey.toCryptoKey('Ed25519', false, ['sign']);
const header = { alg: 'EdDSA', typ: 'at+jwt', kid: 'sAbCdEfGh' };

const server = createServer(
  {
    cert: readFileSync(join(folder, 'server.pem')),
    key: readFileSync(join(folder, 'server-key.pem')),
    ca: readFileSync(join(folder, 'ca.pem')),
    requestCert: true,
    rejectUnauthorized: false,
    keepAliveTimeout: 65_000,
  },
  (request, response) => {
    const parts: Buffer[] = [];
    request.on('data', (part: Buffer) => parts.push(part));
    request.on('end', () => {
      const params = JSON.parse(Buffer.concat(parts).toString()) as Record<string, string>;
      void createTokens(params).then((body) => {
        const text = JSON.stringify(body);
        response.writeHead(200, {
          'content-type': 'application/json; charset=utf-8',
          'content-length': Buffer.byteLength(text),
          'cache-control': 'no-store',
        });
        response.end(text);
      });
    });
  },
);

let issued = 0;
async function createTokens(params: Readonly<Record<string, string>>): Promise<Record<string, unknown>> {
  issued += 1;
  const now = Math.floor(Date.now() / 1_000);
  const accessToken = await new SignJWT({
    iss: 'https://localhost:8443',
    aud: 'https://localhost:8443',
    sub: 'local:{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}',
    client_id: params['client_id'],
    scope: 'files:read',
    gid: 'AbCdEfGhIjKlMnOpQrStUv',
    gen: issued,
    jti: `AbCdEfGhIjKlMnOpQrStUv.${issued}`,
    iat: now,
    exp: now + 3_600,
  })
    .setProtectedHeader(header)
    .sign(key);
  return {
    access_token: accessToken,
    refresh_token: `ghr_mAbCdEfGh.AbCdEfGhIjKlMnOpQrStUv.${issued}.AbCdEfGhIjKlMnOpQrStUvWxYz0123456789AbCdEf0`,
    expires_in: 3_600,
    expires: now + 3_600,
    token_type: 'Bearer',
    scope: 'files:read',
    refresh_until: now + 7_776_000,
    ...(params['scope'] !== undefined && { identity: 'local:{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}' }),
  };
}

server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`${JSON.stringify({ event: 'ready', port: (server.address() as AddressInfo).port })}\n`);
});
