import { readFileSync, statSync } from 'node:fs';
import type { Settings } from '../config/schema.ts';
import type { Epoch } from '../domain/epoch.ts';
import { parseCertificates } from '../x509/certificate-files.ts';
import {
  describeValidity,
  isValidAt,
  mergeValidity,
  readValidity,
  type ValidityMessages,
  type ValidityPeriod,
} from '../x509/validity.ts';

interface TlsFile {
  readonly setting: string;
  readonly file: string | undefined;
  /** The consequence of its expiry. */
  readonly consequence: string;
}

/** Validity of the certificates of the admin listener and of outgoing connections. Other problems of the files are reported where they are used. */
export function checkTlsFileValidity(settings: Settings, now: Epoch): ValidityMessages {
  // Many upstreams have the same CAs.
  const periodsByFile = new Map<string, readonly ValidityPeriod[]>();
  return mergeValidity(
    listTlsFiles(settings).map(({ setting, file, consequence }) => {
      if (file === undefined) return mergeValidity([]);
      const periods = periodsByFile.get(file) ?? readPeriods(file, now);
      periodsByFile.set(file, periods);
      return describeValidity(periods, now, {
        subject: `${setting}: ${file}`,
        expired: `${consequence}: replace it`,
        early: `${consequence} until then: check the clock`,
      });
    }),
  );
}

/** Of a file with several certificates only the one that is valid longest: a bundle of CAs always has some that expire soon. */
function readPeriods(file: string, now: Epoch): readonly ValidityPeriod[] {
  try {
    // A pipe can be read only once.
    if (!statSync(file).isFile()) return [];
    const periods = parseCertificates(readFileSync(file)).map(readValidity);
    const [longest] = periods
      .filter((period) => isValidAt(period, now))
      .toSorted((one, other) => other.notAfter - one.notAfter);
    return longest === undefined ? periods : [longest];
  } catch {
    return [];
  }
}

function listTlsFiles(settings: Settings): TlsFile[] {
  const { admin, audit, certificates, directories, integrations, signIn, store, tracing } = settings;
  const { trustedIssuers, upstreams } = settings;
  const ca = (setting: string, file: string | undefined): TlsFile => ({
    setting,
    file,
    consequence: 'connections to servers with certificates of this CA fail',
  });
  const client = (setting: string, file: string | undefined): TlsFile => ({
    setting,
    file,
    consequence: 'the server may refuse connections',
  });
  return [
    {
      setting: 'admin.tls.certificate',
      file: admin.tls?.certificate,
      consequence: 'clients of the admin listener reject connections',
    },
    {
      setting: 'admin.tls.clientCa',
      file: admin.tls?.clientCa,
      consequence: 'operator certificates of this CA are refused',
    },
    ...Object.entries(upstreams).flatMap(([name, upstream]) => [
      ca(`upstreams.${name}.ca`, upstream.ca),
      client(`upstreams.${name}.certificate`, upstream.certificate),
    ]),
    ...certificates.issuers.map(({ ocsp }, index) => ca(`certificates.issuers[${index}].ocsp.ca`, ocsp?.ca)),
    ...certificates.crls.map((entry, index) =>
      ca(`certificates.crls[${index}].ca`, typeof entry === 'string' ? undefined : entry.ca),
    ),
    ...Object.entries(directories).map(([name, { ldap }]) => ca(`directories.${name}.ldap.ca`, ldap?.ca)),
    ...Object.entries(signIn.openid).map(([name, provider]) => ca(`signIn.openid.${name}.ca`, provider.ca)),
    ...Object.entries(trustedIssuers).flatMap(([name, issuer]) => [
      ca(`trustedIssuers.${name}.ca`, issuer.ca),
      client(`trustedIssuers.${name}.certificate`, issuer.certificate),
    ]),
    ...integrations.flatMap(({ jwksCa, clientDocuments }, index) => [
      ca(`integrations[${index}].jwksCa`, jwksCa),
      ca(`integrations[${index}].clientDocuments.ca`, clientDocuments.ca),
    ]),
    ...(store.type === 'redis'
      ? [ca('store.tls.ca', store.tls?.ca), client('store.tls.certificate', store.tls?.certificate)]
      : []),
    ...(audit.sink === 'syslog'
      ? [
          ca('audit.syslog.ca', audit.syslog?.ca),
          client('audit.syslog.certificate', audit.syslog?.certificate),
        ]
      : []),
    ...(audit.sink === 'webhook' ? [ca('audit.webhook.ca', audit.webhook?.ca)] : []),
    ca('tracing.ca', tracing.ca),
  ];
}
