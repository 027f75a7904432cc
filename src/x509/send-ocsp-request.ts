import { IDENTITY_ENCODING, readResponseBytes } from '../http/read-response.ts';
import type { HttpClient } from '../lib/http-client.ts';

const MAX_BYTES = 64 * 1_024;

/** RFC 6960 appendix A.1, by POST. Redirects are not followed: the operator names the host. */
export async function sendOcspRequest(
  url: string,
  request: Buffer,
  httpClient: Pick<HttpClient, 'send'>,
): Promise<Buffer> {
  const response = await httpClient.send(url, {
    method: 'POST',
    headers: { 'content-type': 'application/ocsp-request', ...IDENTITY_ENCODING },
    body: request,
  });
  const [type = ''] = String(response.headers['content-type'] ?? '').split(';');
  const problem =
    response.status !== 200
      ? `it responded with ${response.status}`
      : type.trim().toLowerCase() === 'application/ocsp-response'
        ? undefined
        : 'its content type is not that of an OCSP response';
  const bytes = await readResponseBytes(response, problem === undefined ? MAX_BYTES : 0).catch((error: unknown) => {
    if (problem === undefined) throw error;
  });
  if (problem !== undefined || bytes === undefined) throw new Error(problem);
  return bytes;
}
