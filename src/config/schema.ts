import { z } from 'zod';
import { crossCheck } from './cross-check.ts';
import { integrationSection, introspectionSection } from './sections/integrations.ts';
import { limitsSection, shutdownSection } from './sections/limits.ts';
import { adminSection, hostsSection, listenSection, serviceSection } from './sections/listen.ts';
import { auditSection, logSection, tracingSection } from './sections/observability.ts';
import { pagesSection, signInSection } from './sections/pages.ts';
import { certificatesSection, directorySection } from './sections/people.ts';
import { routeSection } from './sections/routes.ts';
import { storeSection } from './sections/store.ts';
import { deviceSection, keysSection, tokensSection } from './sections/tokens.ts';
import { headersSection, upstreamSection } from './sections/upstreams.ts';
import { isOrigin, pathIn, peers } from './units.ts';

/** A name of the operator's choice. */
const ownName = z.string().regex(/^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/);

/**
 * The sections of the configuration file, each in a file of sections/. The single source of types, validation,
 * `gatehouse schema` and docs/configuration.md. Paths are resolved against the folder of the file.
 */
export function settingsSections(folder: string) {
  const path = pathIn(folder);
  return {
    publicUrl: z
      .string()
      .refine(
        isOrigin,
        'must be an origin such as https://api.example.test, without a path or a slash at its end',
      )
      .default('https://localhost:8443')
      .meta({ description: 'The address clients use ({base_url}); issuer and audience of tokens.' }),
    listen: listenSection(path).prefault({}),
    trustedProxies: peers.prefault([]).meta({
      description:
        'Peers (address or CIDR) whose X-Forwarded-* headers are believed, and which may ask by forward-auth.',
    }),
    hosts: hostsSection().prefault({}).meta({
      description:
        'Which hosts a request may name. The upstream gets the name as `X-Forwarded-Host`, and may build links from it.',
    }),
    admin: adminSection(path).prefault({}),
    service: serviceSection().prefault({}),
    store: storeSection(path).prefault({}),
    keys: keysSection(path).prefault({}),
    tokens: tokensSection().prefault({}),
    certificates: certificatesSection(path).prefault({}),
    device: deviceSection().prefault({}),
    directories: z
      .record(ownName, directorySection(path))
      .prefault({})
      .meta({ description: 'Where people and workloads are known, by a name of your choice.' }),
    introspection: introspectionSection().prefault({}).meta({
      description:
        'Who may ask what an access token is worth (oauth2/introspect, RFC 7662). Nobody when both are left out.',
    }),
    signIn: signInSection(path).prefault({}).meta({
      description: 'How people sign in on the pages, beside passwords of directories and certificates.',
    }),
    pages: pagesSection(path).prefault({}).meta({ description: 'The pages people meet.' }),
    integrations: z
      .array(integrationSection())
      .prefault([])
      .meta({ description: 'The registered API integrations.' }),
    upstreams: z
      .record(ownName, upstreamSection(path))
      .prefault({})
      .meta({ description: 'Where requests are forwarded to, by a name of your choice.' }),
    routes: z
      .array(routeSection())
      .prefault([])
      .meta({ description: 'First match wins; what no rule matches is denied.' }),
    headers: headersSection()
      .prefault({})
      .meta({ description: 'Names of the headers that tell the upstream who is calling.' }),
    limits: limitsSection().prefault({}),
    shutdown: shutdownSection().prefault({}),
    log: logSection(path).prefault({}),
    audit: auditSection(path).prefault({}),
    tracing: tracingSection(path).prefault({}),
  };
}

/** A schema that reads one file is not worth compiling: that takes longer than reading it. */
export const ONCE = { jitless: true } as const;

export type SettingsSections = ReturnType<typeof settingsSections>;

/** The configuration file, whole: each section by itself, then what they say about each other. */
export function settingsSchema(sections: SettingsSections) {
  return z.strictObject(sections).superRefine((settings, context) => {
    crossCheck(settings, (path, message) => context.addIssue({ code: 'custom', path: [...path], message }));
  });
}

export type Settings = z.output<ReturnType<typeof settingsSchema>>;
export type SettingsInput = z.input<ReturnType<typeof settingsSchema>>;
