import { lookup } from 'node:dns';
import { isIP } from 'node:net';
import { type ClientDocument, parseClientDocument, parseClientIdUrl } from '../domain/client-document.ts';
import type { Epoch } from '../domain/grant.ts';
import { IDENTITY_ENCODING, readResponseText } from '../http/read-response.ts';
import { createBoundedCache } from '../lib/bounded-cache.ts';
import { createHttpClient, type HttpClient, type HttpResponse } from '../lib/http-client.ts';
import { createLookupQueue } from '../lib/lookup-queue.ts';
import { createPublicLookup, isPublicAddress } from '../lib/public-address.ts';
import { parseStrictJson } from '../lib/strict-json.ts';
import { UNKNOWN_CA_CODES } from '../lib/tls-errors.ts';
import { Fault } from '../ports/fault.ts';

interface ClientDocumentOptions {
  /** Documents of hosts with private addresses are read too. */
  readonly privateAddresses: boolean;
  /** PEM. Omitted: the CAs of the runtime. */
  readonly ca?: string | Buffer | undefined;
  readonly now: () => Epoch;
}

/** Reads the metadata of clients whose ids are URLs. */
export interface ClientDocumentReader {
  /** `templateId`: the integration that accepts it. `problem`: for operators only. Throws a `Fault` if it cannot be read now. */
  read(clientId: string, templateId: string): Promise<ClientDocument | { readonly problem: string }>;
}

const TIMEOUT_MS = 5_000;
const MAX_BYTES = 16 * 1_024;
const MAX_CONCURRENT = 32;
/** A slow host must not keep clients of other hosts waiting. */
const MAX_CONCURRENT_PER_HOST = 4;
const MAX_CACHED = 1_000;
/** Seconds for which a document is used, within the limits of its `Cache-Control`. */
const LIFETIME = { min: 60, default: 300, max: 86_400 };
/** Seconds until a document that could not be read is read again. */
const RETRY_AFTER = 10;

/** One queue for all integrations. */
const resolveName = createLookupQueue(lookup, MAX_CONCURRENT, TIMEOUT_MS);
const resolvePublicName = createPublicLookup(resolveName);

type Result = ClientDocument | { readonly problem: string; readonly isTemporary?: boolean };

/**
 * Reads client metadata from URLs that clients name, so the request itself must be harmless: https, public addresses only, no
 * redirects, no credentials, limits on time, size and number. The caller has checked that the host is allowed.
 */
export function createClientDocuments({ privateAddresses, ca, now }: ClientDocumentOptions) {
  const client = createHttpClient({
    timeoutMs: TIMEOUT_MS,
    ca,
    maxConnections: MAX_CONCURRENT_PER_HOST,
    lookup: privateAddresses ? resolveName : resolvePublicName,
  });
  const cache = createBoundedCache<string, { readonly result: Result; readonly until: Epoch }>(MAX_CACHED);
  const pending = new Map<string, { readonly host: string; readonly result: Promise<Result> }>();
  const isFull = (host: string): boolean =>
    pending.size >= MAX_CONCURRENT ||
    [...pending.values()].filter((one) => one.host === host).length >= MAX_CONCURRENT_PER_HOST;

  const fetchAndCache = async (clientId: string, url: URL): Promise<Result> => {
    const { result, lifetime } = await fetchDocument(client, clientId, url);
    cache.set(clientId, { result, until: now() + lifetime });
    return result;
  };

  return {
    async read(clientId: string): Promise<Result> {
      const cached = cache.get(clientId);
      if (cached !== undefined && now() < cached.until) return requireDocument(cached.result);
      const url = parseClientIdUrl(clientId);
      if (url === undefined) return { problem: 'it is not the URL of a document' };
      // A connection to an address, unlike one to a name, does not look it up.
      const address = url.hostname.replace(/^\[|\]$/g, '');
      if (!privateAddresses && isIP(address) !== 0 && !isPublicAddress(address))
        return { problem: 'the host has an address that is not public' };
      const running = pending.get(clientId);
      if (running !== undefined) return requireDocument(await running.result);
      if (isFull(url.host)) throw new Fault('overloaded', 'too many client metadata documents are being read');
      const result = fetchAndCache(clientId, url).finally(() => pending.delete(clientId));
      pending.set(clientId, { host: url.host, result });
      return requireDocument(await result);
    },
    close: () => client.destroy(),
  };
}

/** An unreachable host does not make the client invalid: the response is a temporary error. */
function requireDocument(result: Result): Result {
  if ('problem' in result && result.isTemporary === true)
    throw new Fault('client_document_unavailable', `client metadata: ${result.problem}`, {
      retryAfter: RETRY_AFTER,
    });
  return result;
}

const TEMPORARY_ERRORS: ReadonlySet<unknown> = new Set([
  'EAI_AGAIN',
  'ECONNREFUSED',
  'ECONNRESET',
  'EHOSTUNREACH',
  'ENETUNREACH',
  'EPIPE',
  'ETIMEDOUT',
  'UND_ERR_CONNECT_TIMEOUT',
  'UND_ERR_SOCKET',
]);

const isTemporaryError = (error: Error & { readonly code?: unknown }): boolean =>
  error.name === 'TimeoutError' || TEMPORARY_ERRORS.has(error.code);

/** Node's message about an unknown CA advises an option of Node. */
const describeError = ({ message, code = '' }: NodeJS.ErrnoException): string =>
  UNKNOWN_CA_CODES.includes(code)
    ? 'no trusted CA has issued the certificate of the host; for a private CA, set clientDocuments.ca'
    : message;

async function fetchDocument(
  client: Pick<HttpClient, 'send'>,
  clientId: string,
  url: URL,
): Promise<{ readonly result: Result; readonly lifetime: number }> {
  const fail = (problem: string, isTemporary = false) => ({
    result: { problem, isTemporary },
    lifetime: RETRY_AFTER,
  });
  try {
    const response = await client.send(url, {
      headers: { ...IDENTITY_ENCODING, accept: 'application/json' },
    });
    const problem = findResponseProblem(response);
    const text = await readResponseText(response, problem === undefined ? MAX_BYTES : 0).catch((error: unknown) => {
      if (problem === undefined) throw error;
      return '';
    });
    if (problem !== undefined) return fail(problem, response.status >= 500 || response.status === 429);
    const parsed = parseClientDocument(clientId, parseStrictJson(text));
    return parsed.ok ? { result: parsed.document, lifetime: readLifetime(response) } : fail(parsed.problem);
  } catch (error) {
    return error instanceof Error ? fail(describeError(error), isTemporaryError(error)) : fail('it cannot be read');
  }
}

/** Redirects are not followed: they could lead to another host. */
function findResponseProblem({ status, headers }: HttpResponse): string | undefined {
  if (status !== 200) return `the host responded with ${status}`;
  const [type = ''] = String(headers['content-type'] ?? '').split(';');
  return /^application\/(?:[a-z0-9.-]+\+)?json$/i.test(type.trim())
    ? undefined
    : 'its content type is not application/json';
}

function readLifetime({ headers }: HttpResponse): number {
  const [, maxAge] = /(?:^|[\s,])max-age=([0-9]{1,9})(?:[\s,]|$)/i.exec(String(headers['cache-control'] ?? '')) ?? [];
  return Math.min(LIFETIME.max, Math.max(LIFETIME.min, maxAge === undefined ? LIFETIME.default : Number(maxAge)));
}
