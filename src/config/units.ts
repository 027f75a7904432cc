import { BlockList, isIPv4, isIPv6 } from 'node:net';
import { isAbsolute, resolve } from 'node:path';
import * as z from 'zod';
import { FORWARDABLE_METHOD } from '../domain/request-target.ts';
import { LIMIT_KEYS, type RouteLimit } from '../domain/route-limit.ts';
import { parseScope } from '../domain/scope.ts';

const SECONDS = { ms: 0.001, s: 1, m: 60, h: 3_600, d: 86_400 } as const;
const BYTES = { '': 1, B: 1, KiB: 1_024, MiB: 1_048_576, GiB: 1_073_741_824 } as const;
const PERIOD_SECONDS = { s: 1, m: 60, h: 3_600 } as const;

export const nonEmptyText = z.string().min(1);
export const textUpTo = (length: number) => nonEmptyText.max(length);
export const shortText = textUpTo(256);
/** A string that passes this test. */
export const text = (test: RegExp | ((text: string) => boolean), message: string) =>
  test instanceof RegExp ? z.string().regex(test, message) : z.string().refine(test, message);
/** At least 1. */
export const count = (standard: number) => z.int().min(1).default(standard);
export const off = z.boolean().default(false);
export const on = z.boolean().default(true);
/** One of these; the first is the default. */
export const choice = <const T extends string>(values: readonly [T, ...T[]]) =>
  z.enum(values).default(values[0] as never);
export const optional = z.exactOptional;
export const nonEmptyList = <T extends z.ZodType>(entry: T) => z.array(entry).min(1);
/** Empty by default. */
export const list = <T extends z.ZodType>(entry: T) => z.array(entry).default([] as never);
export const record = <K extends z.core.$ZodRecordKey, V extends z.ZodType>(name: K, value: V) =>
  z.record(name, value).prefault({} as never);
/** Settings that all have a default, or are optional. */
export const group = <T extends z.core.$ZodLooseShape>(settings: T) => z.strictObject(settings).prefault({} as never);
export const method = z.string().regex(FORWARDABLE_METHOD, 'must be a method in capitals, such as GET');

/** `90d` in the file, seconds in the settings. */
export const duration = z
  .string()
  .regex(/^\d{1,9}(?:ms|s|m|h|d)$/, 'must be an integer followed by ms, s, m, h or d, such as 15m')
  .meta({ title: 'duration', examples: ['30s', '5m', '1h', '90d'] })
  .transform((text) => {
    const unit = /[a-z]+$/.exec(text)?.[0] as keyof typeof SECONDS;
    return Number.parseInt(text, 10) * SECONDS[unit];
  });

const boundedDuration = (min: string, max: string) => {
  const [least, most] = [duration.parse(min), duration.parse(max)];
  return duration.refine((seconds) => seconds >= least && seconds <= most, `must be from ${min} to ${max}`);
};

/** With a default. */
export const durationBetween = (min: string, max: string, standard: string) =>
  boundedDuration(min, max).prefault(standard);

export const lifetime = duration.refine((seconds) => seconds >= 1, 'must be at least 1s');

export const codeLifetime = boundedDuration('10s', '1d');

/** `16KiB` in the file, bytes in the settings. */
export const size = z
  .union([
    z.int().nonnegative(),
    z.string().regex(/^\d{1,12}(?:B|KiB|MiB|GiB)?$/, 'must be a size such as 16KiB or 10MiB'),
  ])
  .meta({ title: 'size', examples: ['16KiB', '10MiB'] })
  .transform((value) => {
    if (typeof value === 'number') return value;
    const unit = (/[A-Za-z]+$/.exec(value)?.[0] ?? '') as keyof typeof BYTES;
    return Number.parseInt(value, 10) * BYTES[unit];
  });

/** `600/m` in the file, a token bucket in the settings. `off` is no limit. */
export const rate = (standard: string) =>
  z
    .string()
    .regex(/^(?:off|[1-9]\d{0,8}\/[smh])$/, 'must be a rate such as 20/s or 600/m, or off')
    .meta({ title: 'rate', examples: ['20/s', '600/m', 'off'] })
    .transform((text): Rate | undefined => (text === 'off' ? undefined : parseRate(text)))
    .prefault(standard);

function parseRate(text: string): Rate {
  const [count = '', unit = 's'] = text.split('/');
  return {
    burst: Number(count),
    perSecond: Number(count) / PERIOD_SECONDS[unit as keyof typeof PERIOD_SECONDS],
  };
}

/** What requests of a route are counted by. */
const limitKey = z
  .enum(LIMIT_KEYS)
  .exactOptional()
  .describe(
    'What is counted: the requests of each `identity`, of each `client` (client id), of each client `address` (IPv6: /64) or of the whole `route`. Requests without a token are counted by address instead of identity or client. If omitted: `identity`, on public routes `address`.',
  );

const limitedRate = z
  .string()
  .regex(/^[1-9]\d{0,8}\/[smh]$/, 'must be a rate such as 20/s or 600/m')
  .meta({ title: 'rate', examples: ['20/s', '600/m'] })
  .transform(parseRate);

const routeLimit = z.strictObject({
  limit: limitedRate.describe('The sustained rate.'),
  burst: z
    .int()
    .min(1)
    .max(1_000_000_000)
    .exactOptional()
    .describe('How many requests may be made in a burst. If omitted, the number in `limit`.'),
  per: limitKey,
});

/** `100/s`, a list of limits, or `off`. */
export const routeRate = z.union([
  limitedRate,
  z.literal('off'),
  z
    .array(z.union([limitedRate, routeLimit]))
    .min(1)
    .max(8),
]);

export function listRouteLimits(value: z.output<typeof routeRate> = 'off'): readonly ConfiguredLimit[] {
  if (value === 'off') return [];
  return (Array.isArray(value) ? value : [value]).map((entry): ConfiguredLimit => {
    const { limit, burst = limit.burst, per } = 'limit' in entry ? entry : { limit: entry };
    return {
      rate: { burst, perSecond: limit.perSecond },
      quota: limit.burst,
      window: Math.round(limit.burst / limit.perSecond),
      ...(per !== undefined && { per }),
    };
  });
}

export type ConfiguredLimit = Omit<RouteLimit, 'name' | 'per'> & Partial<Pick<RouteLimit, 'per'>>;

export interface Rate {
  readonly burst: number;
  readonly perSecond: number;
}

export const scope = z
  .string()
  .meta({ title: 'scope', examples: ['reports:read,write;files:read', 'reports:read files:read'] })
  .transform((text, context) => {
    const parsed = parseScope(text, { allowSpaces: true });
    if (parsed.ok) return parsed.value;
    const where = parsed.refusal.reason === 'scope_malformed' ? ` (at character ${parsed.refusal.at + 1})` : '';
    context.addIssue({
      code: 'custom',
      message: `not a scope: "${text}"${where}; write resource:permission,permission;resource, or a space instead of ;`,
    });
    return z.NEVER;
  });

/** The `aud` of tokens: one, or a list. */
export const audience = z
  .union([z.string().min(1).max(512), z.array(z.string().min(1).max(512)).min(1).max(32)])
  .transform((names): readonly string[] => [names].flat());

/** When the file that a setting names is read. A change of a file that is read at a reload causes one. */
export type ReadAt = 'start' | 'reload' | 'use';

/** A setting that names a file or a folder. Relative paths are relative to the folder of the configuration file. */
export const pathRelativeTo = (folder: string, readAt: ReadAt) =>
  z
    .string()
    .min(1)
    .meta({ title: 'path', readAt })
    .transform((path) => (isAbsolute(path) ? path : resolve(folder, path)));

export type PathSchema = ReturnType<typeof pathRelativeTo>;

function addToBlockList(list: BlockList, text: string): boolean {
  const [address = '', bits, ...rest] = text.split('/');
  const family = isIPv4(address) ? 'ipv4' : isIPv6(address) ? 'ipv6' : undefined;
  if (family === undefined || rest.length > 0) return false;
  if (bits === undefined) {
    list.addAddress(address, family);
    return true;
  }
  if (!/^\d{1,3}$/.test(bits) || Number(bits) > (family === 'ipv4' ? 32 : 128)) return false;
  list.addSubnet(address, Number(bits), family);
  return true;
}

/** Peers by address or CIDR; an empty list includes none. */
export const peers = z
  .array(z.string())
  .meta({ title: 'list of peers', examples: [['10.0.0.0/8', '::1']] })
  .transform((texts, context): Peers => {
    const list = new BlockList();
    texts.forEach((text, index) => {
      if (!addToBlockList(list, text))
        context.addIssue({ code: 'custom', path: [index], message: `not an address or CIDR: "${text}"` });
    });
    return {
      entries: texts,
      hasEntries: texts.length > 0,
      includes: (address) => {
        const unmapped = address.startsWith('::ffff:') && isIPv4(address.slice(7)) ? address.slice(7) : address;
        return (
          texts.length > 0 &&
          (isIPv4(unmapped) ? list.check(unmapped, 'ipv4') : isIPv6(unmapped) && list.check(unmapped, 'ipv6'))
        );
      },
    };
  });

export interface Peers {
  /** As in the file. */
  readonly entries: readonly string[];
  readonly hasEntries: boolean;
  readonly includes: (address: string) => boolean;
}

/** RFC 6454 §6.2. */
export const isOrigin = (text: string): boolean => URL.canParse(text) && /^https?:\/\/[^/?#]+$/.test(text);

export const headerName = z
  .string()
  .regex(/^[A-Za-z0-9][A-Za-z0-9-]{0,63}$/, 'must be a header name of letters, digits and dashes');

/** Host names in a URL that mean this machine. */
export const LOOPBACK_HOST = /^(?:localhost|127\.\d{1,3}\.\d{1,3}\.\d{1,3}|\[::1\])$/;

/** For what is signed, and so may be fetched over http. */
export function isPlainHttpUrl(text: string): boolean {
  if (!URL.canParse(text)) return false;
  const { protocol, username, password, hash } = new URL(text);
  return /^https?:$/.test(protocol) && `${username}${password}${hash}`.length === 0;
}

export const httpsOrLoopback = z.string().refine((text) => {
  if (!URL.canParse(text)) return false;
  const { protocol, hostname, username, password, hash, search } = new URL(text);
  if ([username, password, hash, search].some((part) => part.length > 0)) return false;
  return protocol === 'https:' || (protocol === 'http:' && LOOPBACK_HOST.test(hostname));
}, 'must be an https URL (http only for this machine)');

/** Issuers of Entra ID that are shared by all tenants: any tenant could assert any user name. */
const MULTI_TENANT_ISSUER =
  /^https:\/\/(?:login\.microsoftonline\.com|sts\.windows\.net)(?::443)?\/+(?:common|organizations|consumers)(?:\/|$)/i;

export const issuerUrl = httpsOrLoopback.refine(
  (text) => !MULTI_TENANT_ISSUER.test(text),
  'must name your tenant: this issuer is shared by all tenants, and each could assert any user name',
);
