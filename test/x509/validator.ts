import type { Outcome } from '../../src/domain/refusal.ts';
import type { NameSource } from '../../src/ports/directory.ts';
import { type ApprovedIssuer, approveIssuer } from '../../src/x509/approved-issuer.ts';
import {
  createCertificateValidator,
  type ValidatedCertificate,
  type ValidatorOptions,
} from '../../src/x509/certificate-validator.ts';
import { createCrlSet, parseCrlFile } from '../../src/x509/crl-set.ts';
import type { IssuedCertificate, IssuedCrl } from '../support/pki.ts';

export const nowSeconds = (): number => Date.now() / 1_000;

export const approve = (ca: IssuedCertificate, identityFrom: NameSource = 'commonName', name = 'ca'): ApprovedIssuer =>
  approveIssuer({ name, certificate: ca.pem, directory: 'staff', identityFrom });

/** Creates a validator with these issuers and CRLs and the strict default settings. */
export function createTestValidator(
  issuers: readonly ApprovedIssuer[],
  options: Partial<ValidatorOptions> & { readonly lists?: readonly IssuedCrl[] } = {},
) {
  const { lists = [], ...rest } = options;
  const validate = createCertificateValidator({
    issuers,
    crls: createCrlSet(lists.flatMap(({ der }, index) => parseCrlFile(`${index}.crl`, der, issuers))),
    requireCrl: false,
    requireClientAuth: true,
    asciiNames: true,
    ...rest,
  });
  return (certificate: IssuedCertificate | Uint8Array, now = nowSeconds()): Outcome<ValidatedCertificate> =>
    validate.validateLocally(certificate instanceof Uint8Array ? certificate : certificate.der, now);
}

/** Formats a result for comparison: the reason of a refusal, or the accepted name. */
export const formatResult = (outcome: Outcome<ValidatedCertificate>): string =>
  outcome.ok ? `name: ${outcome.value.name}` : outcome.refusal.reason;
