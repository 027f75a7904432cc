import { createHash } from 'node:crypto';
import { pemOf } from './pki.ts';

/** The same certificate in every form in which a front proxy passes it on. */
export function forwardedForms(der: Buffer): readonly (readonly [header: string, value: string])[] {
  const escaped = encodeURIComponent(pemOf('CERTIFICATE', der));
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
