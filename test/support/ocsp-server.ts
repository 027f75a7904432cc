import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { needs } from '../set-up/programs.ts';
import { type Child, startChild } from './child-process.ts';
import { type IssuedCertificate, issue, writePki } from './pki.ts';
import { freePort } from './ports.ts';
import { type TempFolder, tempFolder } from './temp-folder.ts';

needs('openssl');

export const OCSP_SIGNING = '1.3.6.1.5.5.7.3.9';

export type IndexStatus = 'good' | 'revoked';

/** Responses of OpenSSL, which is independent of the code under test. */
export interface OcspAuthority {
  readonly folder: TempFolder;
  readonly responder: IssuedCertificate;
  /** Replaces the database of the CA. Other certificates are unknown. */
  setIndex(entries: readonly (readonly [IssuedCertificate, IndexStatus])[]): void;
  /** The response to a request, with these options of `openssl ocsp`. */
  respond(request: Buffer, options?: RespondOptions): Buffer;
  remove(): void;
}

export interface RespondOptions {
  /** Default: a certificate of the CA for OCSP. */
  readonly signer?: IssuedCertificate;
  readonly args?: readonly string[];
}

const indexLine = ([{ serial, subject }, status]: readonly [IssuedCertificate, IndexStatus]): string =>
  [
    status === 'revoked' ? 'R' : 'V',
    '491231235959Z',
    status === 'revoked' ? '250101000000Z' : '',
    serial.toUpperCase(),
    'unknown',
    `/CN=${subject.replace(/^CN=/, '')}`,
  ].join('\t');

export async function createOcspAuthority(ca: IssuedCertificate): Promise<OcspAuthority> {
  const folder = tempFolder('ocsp');
  const responder = await issue(ca, { commonName: 'responder', extendedKeyUsage: [OCSP_SIGNING] });
  writePki(folder.path, {
    'ca.pem': ca.pem,
    'signer.pem': responder.pem,
    'signer-key.pem': responder.keyPem,
    'index.txt': '',
  });
  return {
    folder,
    responder,
    setIndex: (entries) => void folder.write('index.txt', `${entries.map(indexLine).join('\n')}\n`),
    respond(request, { signer = responder, args = ['-nmin', '60'] } = {}) {
      writePki(folder.path, {
        'request.der': request,
        'other-signer.pem': signer.pem,
        'other-signer-key.pem': signer.keyPem,
      });
      const command = ['ocsp', '-index', 'index.txt', '-CA', 'ca.pem', '-rsigner', 'other-signer.pem'];
      const files = ['-rkey', 'other-signer-key.pem', '-reqin', 'request.der', '-respout', 'response.der'];
      execFileSync('openssl', [...command, ...files, '-noverify', ...args], {
        cwd: folder.path,
        stdio: 'pipe',
      });
      return readFileSync(folder.file('response.der'));
    },
    remove: () => folder.remove(),
  };
}

/** OpenSSL's own responder. */
export async function startOcspServer({ folder }: OcspAuthority): Promise<Child & { readonly url: string }> {
  const port = await freePort();
  const files = ['-index', 'index.txt', '-CA', 'ca.pem', '-rsigner', 'signer.pem', '-rkey', 'signer-key.pem'];
  const child = await startChild(['openssl', 'ocsp', ...files, '-port', String(port), '-nmin', '60', '-ignore_err'], {
    cwd: folder.path,
    ready: (line) => line.includes('waiting for OCSP client connections'),
  });
  return { ...child, url: `http://127.0.0.1:${port}/` };
}
