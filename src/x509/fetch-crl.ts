import { IDENTITY_ENCODING, readResponseBytes } from '../http/read-response.ts';
import type { HttpClient } from '../lib/http-client.ts';

/** RFC 2585 §4.2, and what servers without a configured type send. */
const CONTENT_TYPES: ReadonlySet<string> = new Set([
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

/** Redirects are not followed: the operator names the host. */
export async function fetchCrl(
  url: string,
  maxBytes: number,
  httpClient: Pick<HttpClient, 'send'>,
): Promise<Buffer> {
  const response = await httpClient.send(url, { headers: { ...IDENTITY_ENCODING } });
  const [type = ''] = String(response.headers['content-type'] ?? '').split(';');
  const problem =
    response.status !== 200
      ? `it responded with ${response.status}`
      : CONTENT_TYPES.has(type.trim().toLowerCase())
        ? undefined
        : 'its content type is not that of a revocation list';
  const bytes = await readResponseBytes(response, problem === undefined ? maxBytes : 0).catch(
    (error: unknown) => {
      if (problem === undefined) throw error;
    },
  );
  if (problem !== undefined || bytes === undefined) throw new Error(problem);
  return bytes;
}
