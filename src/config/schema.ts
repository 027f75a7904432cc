import * as z from 'zod';
import { type CrossCheck, checkWith } from './cross-check.ts';
import { certificatesSection, directorySection, identityRules } from './sections/identity.ts';
import { integrationRules, integrationSection, introspectionSection } from './sections/integrations.ts';
import { limitsSection, shutdownSection } from './sections/limits.ts';
import {
  adminSection,
  hostsSection,
  listenRules,
  listenSection,
  resourceMetadataSection,
  serviceSection,
} from './sections/listen.ts';
import { auditSection, logSection, tracingSection } from './sections/observability.ts';
import { pagesRules, pagesSection, signInRules, signInSection } from './sections/pages.ts';
import { routeRules, routeSection } from './sections/routes.ts';
import { storeSection } from './sections/store.ts';
import { deviceSection, dpopSection, keysSection, tokensSection } from './sections/tokens.ts';
import { trustedIssuerRules, trustedIssuerSection } from './sections/trusted-issuers.ts';
import { headerRules, headersSection, upstreamSection } from './sections/upstreams.ts';
import { isOrigin, pathRelativeTo, peers } from './units.ts';

/** A name that the operator chooses. */
const customName = z.string().regex(/^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/);

/**
 * The sections of the configuration file. The single source of types, validation, `gatehouse schema` and
 * docs/configuration.md. Relative paths are resolved against the folder of the file.
 */
export function createSections(folder: string) {
  const path = pathRelativeTo(folder, 'reload');
  const startPath = pathRelativeTo(folder, 'start');
  return {
    publicUrl: z
      .string()
      .refine(isOrigin, 'must be an origin such as https://api.example.test, without a path or a trailing slash')
      .default('https://localhost:8443')
      .describe('The URL at which clients reach gatehouse. It is also the issuer and the default audience of tokens.'),
    listen: listenSection(path).prefault({}),
    trustedProxies: peers
      .prefault([])
      .describe('Peers (address or CIDR) whose X-Forwarded-* headers are trusted and which may use forward-auth.'),
    hosts: hostsSection()
      .prefault({})
      .describe(
        'Host names that requests may use. The upstream receives the name as `X-Forwarded-Host` and may build links from it.',
      ),
    admin: adminSection(path).prefault({}).meta({ appliesAfter: 'restart' }),
    service: serviceSection().prefault({}),
    resourceMetadata: resourceMetadataSection()
      .prefault({})
      .describe('Description of the protected API for clients (RFC 9728).'),
    store: storeSection(startPath).prefault({}).meta({ appliesAfter: 'restart' }),
    keys: keysSection(path).prefault({}),
    tokens: tokensSection().prefault({}),
    dpop: dpopSection().prefault({}).describe('Access tokens that are bound to a key of the client (DPoP, RFC 9449).'),
    certificates: certificatesSection(path).prefault({}),
    device: deviceSection().prefault({}),
    directories: z
      .record(customName, directorySection(path))
      .prefault({})
      .describe('Directories of users and workloads, by a name that you choose.'),
    trustedIssuers: z
      .record(customName, trustedIssuerSection(path))
      .prefault({})
      .describe(
        'Identity providers whose access tokens are accepted on the routes that list them in `issuers`, by a name that you choose.',
      ),
    introspection: introspectionSection()
      .prefault({})
      .describe(
        'Who may introspect access tokens (oauth2/introspect, RFC 7662). If both settings are omitted, introspection is off.',
      ),
    signIn: signInSection(path)
      .prefault({})
      .describe('Sign-in methods on the pages, in addition to passwords of directories and client certificates.'),
    pages: pagesSection(path).prefault({}).describe('The browser pages.'),
    integrations: z.array(integrationSection(path)).prefault([]).describe('The registered API integrations.'),
    upstreams: z
      .record(customName, upstreamSection(path))
      .prefault({})
      .describe('Where requests are forwarded to, by a name that you choose.'),
    routes: z.array(routeSection()).prefault([]).describe('The first match wins; requests without a match are denied.'),
    headers: headersSection().prefault({}).describe('Names of the headers that identify the caller to the upstream.'),
    limits: limitsSection().prefault({}),
    shutdown: shutdownSection().prefault({}),
    log: logSection(path).prefault({}),
    audit: auditSection(startPath).prefault({}).meta({ appliesAfter: 'workerRestart' }),
    tracing: tracingSection(startPath).prefault({}).meta({ appliesAfter: 'workerRestart' }),
  };
}

/** Compiling the parser takes longer than parsing one file without it. */
export const PARSE_OPTIONS = { jitless: true } as const;

export type SettingsSections = ReturnType<typeof createSections>;

/** Rules about several sections, declared with the sections whose settings they report. */
export const CROSS_CHECKS: readonly CrossCheck[] = [
  ...listenRules,
  ...identityRules,
  ...signInRules,
  ...integrationRules,
  ...routeRules,
  ...trustedIssuerRules,
  ...headerRules,
  ...pagesRules,
];

/** The whole configuration file: every section by itself, then the rules about several. */
export function createSettingsSchema(sections: SettingsSections) {
  return z.strictObject(sections).superRefine(
    checkWith((settings, report) => {
      for (const { run } of CROSS_CHECKS) run(settings, report);
    }),
  );
}

type SettingsObject = z.ZodObject<SettingsSections, z.core.$strict>;
export type Settings = z.output<SettingsObject>;
export type SettingsInput = z.input<SettingsObject>;
