import type { Outcome } from '../../src/domain/outcome.ts';
import type { JudgedCertificate } from '../../src/ports/certificate-judge.ts';
import type { NameSource } from '../../src/ports/directory.ts';
import { type ApprovedIssuer, approveIssuer } from '../../src/tls/approved-issuer.ts';
import { createCertificateJudge, type JudgeOptions } from '../../src/tls/certificate-judge.ts';
import { readRevocationFile, revocationLists } from '../../src/tls/revocation-lists.ts';
import type { Certified, MadeCrl } from '../support/pki.ts';

export const nowSeconds = (): number => Date.now() / 1_000;

export const approved = (
  ca: Certified,
  identityFrom: NameSource = 'commonName',
  name = 'ca',
): ApprovedIssuer => approveIssuer({ name, certificate: ca.pem, directory: 'staff', identityFrom });

/** A judge that approves these issuers and holds these lists; strict as by default. */
export function judgeOf(
  issuers: readonly ApprovedIssuer[],
  options: Partial<JudgeOptions> & { readonly lists?: readonly MadeCrl[] } = {},
) {
  const { lists = [], ...rest } = options;
  const judge = createCertificateJudge({
    issuers,
    crls: revocationLists(
      lists.flatMap(({ der }, index) => readRevocationFile(`${index}.crl`, der, issuers)),
    ),
    requireCrl: false,
    requireClientAuth: true,
    asciiNames: true,
    ...rest,
  });
  return (one: Certified | Uint8Array, now = nowSeconds()): Outcome<JudgedCertificate> =>
    judge.judge(one instanceof Uint8Array ? one : one.der, now);
}

/** The reason of a refusal, or the name that was granted: what tables of tests compare. */
export const verdict = (outcome: Outcome<JudgedCertificate>): string =>
  outcome.ok ? `name: ${outcome.value.name}` : outcome.refusal.reason;
