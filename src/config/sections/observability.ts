import { z } from 'zod';
import { HIDEABLE_FIELDS, PSEUDONYM_FIELDS } from '../../observability/access-fields.ts';
import { FACILITIES } from '../../observability/syslog-format.ts';
import type { Path } from '../units.ts';

const secret = z.string().min(16, 'must have at least 16 characters').max(1_024);

/** An address events or spans are sent to: http or https, and nothing in it that does not belong there. */
const postUrl = z.string().refine((text) => {
  if (!/^https?:\/\/[\x21-\x7e]+$/.test(text) || !URL.canParse(text)) return false;
  const { protocol, host, pathname, search } = new URL(text);
  return new URL(text).href === `${protocol}//${host}${pathname}${search}`;
}, 'must be an http or https URL without a user name, a password or a fragment');

export const logSection = (path: Path) =>
  z.strictObject({
    level: z
      .enum(['debug', 'info', 'warn', 'error'])
      .default('info')
      .meta({ description: 'The least important lines that are written.' }),
    format: z
      .enum(['json', 'text'])
      .default('json')
      .meta({ description: '`json` for programs, `text` for people.' }),
    access: z
      .strictObject({
        enabled: z.boolean().default(true).meta({ description: 'One line for each request.' }),
        exclude: z
          .array(z.enum(HIDEABLE_FIELDS))
          .default([])
          .meta({ description: 'Fields that are left out of it.' }),
        pseudonymise: z.array(z.enum(PSEUDONYM_FIELDS)).default([]).meta({
          description:
            'Fields that hold a keyed digest instead of their value: equal values stay equal, and nobody without the key can tell which they are.',
        }),
        pseudonymKey: secret
          .exactOptional()
          .meta({ description: 'The key of these digests; the same on every replica.' }),
        pseudonymKeyFile: path.exactOptional().meta({ description: 'A file that holds this key.' }),
      })
      .prefault({}),
  });

export const auditSection = (path: Path) =>
  z.strictObject({
    sink: z.enum(['stdout', 'file', 'syslog', 'webhook']).default('stdout').meta({
      description: 'Where it is recorded who was given, refused or lost what. `stdout`: among the log lines.',
    }),
    failClosed: z.boolean().default(false).meta({
      description:
        'While the sink takes nothing, no grant is given, refreshed or confirmed: clients hear of a temporary error. Revoking goes on.',
    }),
    buffer: z.int().min(100).max(1_000_000).default(10_000).meta({
      description:
        'Most events that wait for the sink, for each process; beyond it the oldest are lost, refusals first.',
    }),
    file: path.exactOptional().meta({
      description: 'File of `sink: file`: a JSON line for each event, mode 0600, opened again on SIGHUP.',
    }),
    syslog: z
      .strictObject({
        url: z
          .string()
          .regex(
            /^(?:unix:\/.+|(?:udp|tcp|tls):\/\/(?:\[[0-9a-fA-F:]+\]|[^\s/:[\]]+):\d{1,5})$/,
            'must be unix:/path, udp://host:port, tcp://host:port or tls://host:port',
          )
          .meta({
            description:
              '`udp://host:514`, `tcp://host:601`, `tls://host:6514` or `unix:/path` (a stream socket).',
          }),
        facility: z
          .enum(FACILITIES)
          .default('authpriv')
          .meta({ description: 'Facility of the messages (RFC 5424).' }),
        ca: path.exactOptional().meta({ description: 'CA bundle the receiver is trusted by, PEM.' }),
        certificate: path.exactOptional().meta({ description: 'Our client certificate, PEM.' }),
        key: path.exactOptional().meta({ description: 'Its private key, PEM.' }),
      })
      .exactOptional()
      .meta({ description: 'Receiver of `sink: syslog`. Files are read at start.' }),
    webhook: z
      .strictObject({
        url: postUrl.meta({ description: 'Events are sent there by POST, several at once, as JSON.' }),
        secret: secret
          .exactOptional()
          .meta({ description: 'Key of the signature each delivery carries (HMAC-SHA-256).' }),
        secretFile: path.exactOptional().meta({ description: 'A file that holds this key.' }),
        ca: path.exactOptional().meta({ description: 'CA bundle the receiver is trusted by, PEM.' }),
        batch: z.int().min(1).max(1_000).default(100).meta({ description: 'Most events in one delivery.' }),
      })
      .exactOptional()
      .meta({ description: 'Receiver of `sink: webhook`.' }),
  });

export const tracingSection = (path: Path) =>
  z.strictObject({
    otlp: postUrl.exactOptional().meta({
      description:
        'OpenTelemetry collector: one span for each request is sent there by OTLP/HTTP in JSON. Left out: none.',
      examples: ['http://collector:4318/v1/traces'],
    }),
    ratio: z
      .number()
      .min(0)
      .max(1)
      .default(0.1)
      .meta({ description: 'Which part of the traces is sent, from 0 to 1.' }),
    token: z
      .string()
      .min(1)
      .exactOptional()
      .meta({ description: 'Bearer token for the collector, where it asks for one.' }),
    tokenFile: path.exactOptional().meta({ description: 'A file that holds this token.' }),
    ca: path.exactOptional().meta({ description: 'CA bundle the collector is trusted by, PEM.' }),
    service: z
      .string()
      .min(1)
      .max(128)
      .default('gatehouse')
      .meta({ description: '`service.name` of spans.' }),
  });

interface LogGiven {
  readonly access: { readonly pseudonymise: readonly string[]; readonly pseudonymKey?: string };
}

interface AuditGiven {
  readonly sink: string;
  readonly file?: string;
  readonly syslog?: { readonly url: string; readonly certificate?: string; readonly key?: string };
  readonly webhook?: { readonly secret?: string };
}

export interface ObservabilitySections {
  readonly log?: LogGiven | undefined;
  readonly audit?: AuditGiven | undefined;
}

/** What of them contradicts itself. */
export function observabilityProblems({
  log,
  audit,
}: ObservabilitySections): readonly { readonly path: readonly string[]; readonly message: string }[] {
  const problems: { path: readonly string[]; message: string }[] = [];
  if (log !== undefined && log.access.pseudonymise.length > 0 && log.access.pseudonymKey === undefined)
    problems.push({
      path: ['log', 'access', 'pseudonymKey'],
      message: 'is missing; without a key the digests of log.access.pseudonymise could be guessed',
    });
  if (audit === undefined) return problems;
  const { sink, syslog, webhook } = audit;
  if (sink === 'file' && audit.file === undefined)
    problems.push({
      path: ['audit', 'file'],
      message: 'is missing; with audit.sink: file it names the file',
    });
  if (sink === 'syslog' && syslog === undefined)
    problems.push({
      path: ['audit', 'syslog'],
      message: 'is missing; with audit.sink: syslog it names the receiver',
    });
  if (syslog !== undefined && (syslog.certificate === undefined) !== (syslog.key === undefined))
    problems.push({ path: ['audit', 'syslog'], message: 'needs certificate and key, or neither' });
  if (sink === 'webhook' && webhook?.secret === undefined)
    problems.push({
      path: ['audit', 'webhook'],
      message: 'is not whole; with audit.sink: webhook it names the receiver (url) and a secret to sign with',
    });
  return problems;
}
