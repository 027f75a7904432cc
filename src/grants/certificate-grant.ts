import { keepGrantUntil } from '../domain/grant.ts';
import { accessOf, type Integration, mayHold, names } from '../domain/integration.ts';
import { granted, type Outcome, refused } from '../domain/outcome.ts';
import type { Person } from '../domain/person.ts';
import { meet, parseScope, type ScopeDialect, writeScope } from '../domain/scope.ts';
import type { JudgedCertificate } from '../ports/certificate-judge.ts';
import type { GrantDesk } from './desk.ts';
import {
  firstGeneration,
  grantFields,
  type Issued,
  issue,
  mustBeRecordable,
  randomGrantId,
} from './issue.ts';

export interface CertificateAsk {
  readonly clientId: string;
  readonly scope: string | undefined;
  /** The certificate proven in the handshake of this connection, DER. */
  readonly certificate: Uint8Array | undefined;
  readonly dialect?: ScopeDialect;
  /**
   * RFC 6749 §4.4: no refresh token, because the certificate buys the next access token as well; and whoever names no
   * scope gets all that both the access list and the integration allow.
   */
  readonly accessOnly?: true;
}

/** Who a certificate speaks for. Asked before anything is told about integrations. */
export async function identify(
  desk: GrantDesk,
  certificate: Uint8Array | undefined,
): Promise<Outcome<{ readonly person: Person; readonly certificate: JudgedCertificate }>> {
  if (certificate === undefined) return refused({ reason: 'certificate_missing' });
  const judged = desk.certificates.judge(certificate, desk.now());
  if (!judged.ok) return judged;
  const { directory, source, name } = judged.value;
  const person = await desk.people.byCertificateName(directory, source, name);
  if (person === undefined)
    return refused({ reason: 'identity_unknown', who: `${source} ${name} of ${judged.value.issuer}` });
  if (person.disabled) return refused({ reason: 'identity_disabled', identity: person.identity });
  if (judged.value.namesDiffer)
    desk.log.audit('certificate_names_differ', {
      identity: person.identity,
      source,
      issuer: judged.value.issuer,
    });
  return granted({ person, certificate: judged.value });
}

/** Undefined for somebody who may hold nothing here: the access list then refuses them by name. */
function allOf(integration: Integration, person: Person): string | undefined {
  const access = accessOf(integration, person, 'certificate');
  return writeScope(access === undefined ? integration.scope : meet(access, integration.scope)) || undefined;
}

/** A token for a caller known by its client certificate. One write. */
export async function grantByCertificate(desk: GrantDesk, ask: CertificateAsk): Promise<Outcome<Issued>> {
  mustBeRecordable(desk);
  const known = await identify(desk, ask.certificate);
  if (!known.ok) return known;
  const { person, certificate } = known.value;

  if (!desk.integrations.values().some(({ access }) => access.some((entry) => names(entry, person))))
    return refused({ reason: 'identity_without_access', identity: person.identity });
  const integration = desk.integrations.get(ask.clientId);
  if (integration === undefined) return refused({ reason: 'client_unknown', clientId: ask.clientId });
  if (!integration.grants.has('certificate'))
    return refused({ reason: 'grant_type_off', grantType: 'certificate' });
  if (integration.issuers !== undefined && !integration.issuers.has(certificate.issuerKey))
    return refused({ reason: 'certificate_issuer_not_approved' });

  const asked = ask.scope ?? (ask.accessOnly && allOf(integration, person));
  if (asked === undefined) return refused({ reason: 'scope_missing' });
  const scope = parseScope(asked, ask.dialect);
  if (!scope.ok) return scope;
  const allowed = mayHold(integration, person, 'certificate', scope.value);
  if (!allowed.ok) return allowed;

  const now = desk.now();
  const grant = firstGeneration(desk, {
    id: randomGrantId(),
    integration,
    identity: person.identity,
    grantType: 'certificate',
    scope: asked,
    refreshable: ask.accessOnly !== true,
    now,
    ...(integration.bindToCertificate && { boundTo: certificate.fingerprint }),
  });
  if ((await desk.store.grants.create(grant.id, grant, keepGrantUntil(grant))) === 'taken')
    throw new Error('a random grant id was taken');
  const issued = await issue(desk, grant, now);
  desk.log.audit('grant_issued', { ...grantFields(grant), issuer: certificate.issuer });
  return granted(issued);
}
