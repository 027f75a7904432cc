import * as z from 'zod';
import { EXCLUDABLE_FIELDS, PSEUDONYMISABLE_FIELDS } from '../../observability/access-fields.ts';
import { checkWith } from '../cross-check.ts';
import { choice, group, list, nonEmptyText, off, on, optional, type PathSchema, text, textUpTo } from '../units.ts';

const secret = z.string().min(16, 'must have at least 16 characters').max(1_024);

/** Receiver of events or spans. */
const httpUrl = text((text) => {
  if (!/^https?:\/\/[\x21-\x7e]+$/.test(text) || !URL.canParse(text)) return false;
  const { protocol, host, pathname, search } = new URL(text);
  return new URL(text).href === `${protocol}//${host}${pathname}${search}`;
}, 'must be an http or https URL without a user name, a password or a fragment');

export const logSection = (path: PathSchema) =>
  z
    .strictObject({
      level: z
        .enum(['debug', 'info', 'warn', 'error'])
        .default('info')
        .meta({ description: 'Lowest level that is logged.', appliesAfter: 'restart' }),
      format: choice(['auto', 'json', 'text']).meta({
        description:
          '`json` for log processors, `text` for people. `auto`: `text` if standard output is a terminal, otherwise, and always in Kubernetes and as a systemd service, `json`.',
        appliesAfter: 'restart',
      }),
      access: group({
        enabled: on.describe('Log one line per request.'),
        exclude: list(z.enum(EXCLUDABLE_FIELDS)).describe('Fields to omit from it.'),
        pseudonymise: list(z.enum(PSEUDONYMISABLE_FIELDS)).describe(
          'Fields that contain a keyed digest instead of their value: equal values stay equal, and the value cannot be recovered without the key.',
        ),
        pseudonymKey: optional(secret).describe('Key of these digests; the same on every replica.'),
        pseudonymKeyFile: optional(path).describe('File that contains the key.'),
      }),
    })
    .superRefine(
      checkWith(({ access }, report) => {
        if (access.pseudonymise.length > 0 && access.pseudonymKey === undefined)
          report(
            ['access', 'pseudonymKey'],
            'is missing; without a key the digests of log.access.pseudonymise could be guessed',
          );
      }),
    );

export const auditSection = (path: PathSchema) =>
  z
    .strictObject({
      sink: choice(['stdout', 'file', 'webhook']).describe(
        'Destination of audit events. `stdout`: together with the log.',
      ),
      failClosed: off.describe(
        'While the sink does not accept events, grants cannot be issued, refreshed or confirmed: clients receive a temporary error. Revocation still works.',
      ),
      file: optional(path).describe('File of `sink: file`: one JSON line per event, mode 0600, reopened on SIGHUP.'),
      webhook: optional(
        z.strictObject({
          url: httpUrl.describe('Events are sent there with POST, in batches, as JSON.'),
          secret: optional(secret).describe('Key that signs each delivery (HMAC-SHA-256).'),
          secretFile: optional(path).describe('File that contains the key.'),
          ca: optional(path).describe('CA bundle for the receiver, PEM.'),
        }),
      ).describe('Receiver of `sink: webhook`.'),
    })
    .superRefine(
      checkWith(({ sink, file, webhook }, report) => {
        if (sink === 'file' && file === undefined) report(['file'], 'is missing; audit.sink: file needs it');
        if (sink === 'webhook' && webhook?.secret === undefined)
          report(['webhook'], 'is incomplete; audit.sink: webhook needs the url of the receiver and a secret');
      }),
    );

export const tracingSection = (path: PathSchema) =>
  z.strictObject({
    otlp: optional(httpUrl).meta({
      description:
        'OpenTelemetry collector that receives one span per request over OTLP/HTTP (JSON). If omitted, tracing is off.',
      examples: ['http://collector:4318/v1/traces'],
    }),
    ratio: z.number().min(0).max(1).default(0.1).describe('Fraction of traces that are sent, from 0 to 1.'),
    token: optional(nonEmptyText).describe('Bearer token for the collector.'),
    tokenFile: optional(path).describe('File that contains the token.'),
    ca: optional(path).describe('CA bundle for the collector, PEM.'),
    service: textUpTo(128).default('gatehouse').describe('`service.name` of spans.'),
  });
