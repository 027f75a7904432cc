import type { z } from 'zod';
import { ok, refused } from '../domain/outcome.ts';
import { grantByCertificate } from '../grants/certificate-grant.ts';
import { certificateRateLimitKey } from '../grants/rate-limit-key.ts';
import { getFieldNames } from '../http/schema-fields.ts';
import { CERTIFICATE_ERRORS } from './error-tables.ts';
import { type CertificateGrant, CertificateRequest } from './schemas.ts';
import type { TokenApiEndpoint } from './service.ts';
import { formatTokenGrant } from './token-grant.ts';

/** POST Authorize/Certificate: a grant for the identity in the client certificate. */
export const certificate: TokenApiEndpoint = {
  name: 'certificate',
  method: 'POST',
  path: '/authorize/certificate',
  errors: () => CERTIFICATE_ERRORS,
  internalErrorStatus: 400,
  body: { parameterNames: getFieldNames(CertificateRequest), encodings: ['json'] },
  identifyCaller: (service, context, parameters) =>
    certificateRateLimitKey(service.grantDeps, service.getCertificate(context)?.der, parameters.get('client_id')),
  async handle(service, context, parameters) {
    const clientId = parameters.get('client_id');
    if (clientId === undefined) return refused({ reason: 'client_id_missing' });
    context.note({ clientId });
    const issued = await grantByCertificate(service.grantDeps, {
      clientId,
      scope: parameters.get('scope'),
      certificate: service.getCertificate(context)?.der,
    });
    if (!issued.ok) return issued;
    const { grant } = issued.value;
    context.note({ identity: grant.identity, grantId: grant.id });
    return ok({
      status: 200,
      body: {
        ...formatTokenGrant(issued.value),
        identity: grant.identity,
      } satisfies z.output<typeof CertificateGrant>,
    });
  },
};
