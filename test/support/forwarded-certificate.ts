import { createHash } from 'node:crypto';
import {
  type ForwardedHeader,
  findForwardedField,
  parseForwardedCertificate,
} from '../../src/x509/forwarded-certificate.ts';
import { toPem } from './pki.ts';

/** The certificate in every header format that front proxies use. */
export function forwardedCertificateHeaders(der: Buffer): readonly (readonly [header: string, value: string])[] {
  const escaped = encodeURIComponent(toPem('CERTIFICATE', der));
  const hash = createHash('sha256').update(der).digest('hex');
  return [
    ['Client-Cert', `:${der.toString('base64')}:`],
    [
      'X-Forwarded-Client-Cert',
      `By=spiffe://mesh/ns/a;Hash=${hash};Cert="${escaped}";Subject="CN=alice,O=\\"x\\"";URI=`,
    ],
    ['ssl-client-cert', escaped],
    ['X-SSL-Client-Cert', escaped],
    ['X-Forwarded-Tls-Client-Cert', der.toString('base64')],
  ];
}

/** Reads the leaf certificate (DER) from the header of a front proxy. */
export function readForwardedCertificate(
  rawHeaders: readonly string[],
  header: ForwardedHeader,
): Buffer | undefined | 'ambiguous' {
  const field = findForwardedField(rawHeaders, header);
  if (field.kind === 'found') return parseForwardedCertificate(header, field.value) ?? 'ambiguous';
  return field.kind === 'ambiguous' ? 'ambiguous' : undefined;
}
