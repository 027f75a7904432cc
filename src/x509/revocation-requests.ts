import { IDENTITY_ENCODING, readResponseBytes } from '../http/read-response.ts';
import type { HttpClient, HttpRequest } from '../lib/http-client.ts';

type Sender = Pick<HttpClient, 'send'>;

/** RFC 2585 §4.2, and what servers without a configured type send. */
const CRL_TYPES: ReadonlySet<string> = new Set([
  'application/pkix-crl',
  'application/x-pkcs7-crl',
  'application/x-x509-crl',
  'application/x-pem-file',
  'application/pem-certificate-chain',
  'application/octet-stream',
  'binary/octet-stream',
  'text/plain',
  '',
]);

const OCSP_TYPES: ReadonlySet<string> = new Set(['application/ocsp-response']);
const MAX_OCSP_BYTES = 64 * 1_024;

export const fetchCrl = (url: string, maxBytes: number, httpClient: Sender): Promise<Buffer> =>
  request(httpClient, url, {}, { types: CRL_TYPES, name: 'a revocation list', maxBytes });

/** RFC 6960 appendix A.1, by POST. */
export const sendOcspRequest = (url: string, body: Buffer, httpClient: Sender): Promise<Buffer> =>
  request(
    httpClient,
    url,
    { method: 'POST', headers: { 'content-type': 'application/ocsp-request' }, body },
    { types: OCSP_TYPES, name: 'an OCSP response', maxBytes: MAX_OCSP_BYTES },
  );

/** Redirects are not followed: the operator names the host. */
async function request(
  httpClient: Sender,
  url: string,
  options: HttpRequest,
  expected: { readonly types: ReadonlySet<string>; readonly name: string; readonly maxBytes: number },
): Promise<Buffer> {
  const headers = { ...options.headers, ...IDENTITY_ENCODING };
  const response = await httpClient.send(url, { ...options, headers });
  const [type = ''] = String(response.headers['content-type'] ?? '').split(';');
  const problem =
    response.status !== 200
      ? `it responded with ${response.status}`
      : expected.types.has(type.trim().toLowerCase())
        ? undefined
        : `its content type is not that of ${expected.name}`;
  const maxBytes = problem === undefined ? expected.maxBytes : 0;
  const bytes = await readResponseBytes(response, maxBytes).catch((error: unknown) => {
    if (problem === undefined) throw error;
  });
  if (problem !== undefined || bytes === undefined) throw new Error(problem);
  return bytes;
}
