import type { z } from 'zod';
import { granted, refused } from '../domain/outcome.ts';
import { certificateCaller } from '../grants/caller.ts';
import { grantByCertificate } from '../grants/certificate-grant.ts';
import { namesOf } from '../http/wire-fields.ts';
import type { Operation } from './service.ts';
import { tokenGrant } from './token-grant.ts';
import { type CertificateGrant, CertificateRequest } from './wire.ts';
import { CERTIFICATE_ERRORS } from './wire-errors.ts';

/** POST Authorize/Certificate: a token for a caller identified by its client certificate. */
export const certificate: Operation = {
  name: 'certificate',
  method: 'POST',
  head: false,
  path: '/authorize/certificate',
  errors: CERTIFICATE_ERRORS,
  fault: { status: 400, code: 'invalid_request' },
  body: { known: namesOf(CertificateRequest), accepted: ['json'] },
  caller: (service, call, parameters) =>
    certificateCaller(service.desk, service.certificateOf(call)?.der, parameters.get('client_id')),
  async answer(service, call, parameters) {
    const clientId = parameters.get('client_id');
    if (clientId === undefined) return refused({ reason: 'client_id_missing' });
    call.note({ clientId });
    const issued = await grantByCertificate(service.desk, {
      clientId,
      scope: parameters.get('scope'),
      certificate: service.certificateOf(call)?.der,
    });
    if (!issued.ok) return issued;
    const { grant } = issued.value;
    call.note({ identity: grant.identity, grantId: grant.id });
    return granted({
      status: 200,
      body: {
        ...tokenGrant(issued.value),
        identity: grant.identity,
      } satisfies z.output<typeof CertificateGrant>,
    });
  },
};
