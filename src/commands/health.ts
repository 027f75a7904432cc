import { request as httpRequest } from 'node:http';
import { request as httpsRequest } from 'node:https';
import { connectionTrouble, isLate } from '../client/connection-trouble.ts';
import { printable } from '../client/printable.ts';
import { webAddress } from './address.ts';
import { adminUrl } from './admin-call.ts';
import {
  CONFIG_OPTIONS,
  type Command,
  CommandError,
  type Context,
  EXIT,
  UsageError,
  writeJson,
} from './command.ts';
import { settingsFor } from './settings.ts';

const LIMIT_MS = 2_000;

export const command: Command = {
  name: 'health',
  summary: 'asks the running gatehouse whether it is ready: for container probes',
  usage: ['gatehouse health [--config FILE]', 'gatehouse health --url http://127.0.0.1:9443'],
  options: {
    ...CONFIG_OPTIONS,
    url: { type: 'string', value: 'URL', help: 'the admin listener, instead of reading the configuration' },
  },
  notes: ['Exit code 0 when ready, 69 when not or when nothing answers within 2 seconds.'],
  async run(context) {
    const url = await addressOf(context);
    if (typeof url === 'number') return url;
    const { status, failed = [], why = `answered ${status}` } = await ask(url);
    const ready = status === 200;
    const told = failed.map(({ name, problem }) => `${name} (${problem})`).join(', ');
    if (context.json)
      writeJson(context, {
        ready,
        url: url.href,
        ...(!ready && { why, ...(failed.length > 0 && { failed }) }),
      });
    else if (ready) context.stdout('ready\n');
    else throw new CommandError(`not ready: ${told === '' ? `${url.href} ${why}` : told}`, EXIT.unavailable);
    return ready ? EXIT.ok : EXIT.unavailable;
  },
};

async function addressOf(context: Context): Promise<URL | number> {
  const given = context.option('url');
  if (given !== undefined)
    return new URL('/readyz', webAddress('gatehouse health: --url', given, { scheme: 'http' }));
  const loaded = await settingsFor(context);
  if (typeof loaded === 'number') return loaded;
  const { admin } = loaded.settings;
  if (admin.port === 0)
    throw new UsageError('gatehouse health: admin.port is 0 (any free port); name the address with --url');
  return new URL('/readyz', adminUrl(admin));
}

interface Failed {
  readonly name: string;
  readonly problem: string;
}

interface Answer {
  /** Left out: there was none. */
  readonly status?: number;
  readonly failed?: readonly Failed[];
  readonly why?: string;
}

const MAX_BYTES = 64 * 1_024;

/** What it answers, with the checks that failed; or why there is no answer. */
function ask(url: URL): Promise<Answer> {
  return new Promise((resolve) => {
    const send = url.protocol === 'https:' ? httpsRequest : httpRequest;
    const fail = (error: NodeJS.ErrnoException): void => {
      if (isLate(error)) resolve({ why: `did not answer within ${LIMIT_MS / 1_000} s` });
      else resolve({ why: connectionTrouble(error, { url, caBy: '', caGiven: false }).words });
    };
    // Only "ready" or "not ready" is learned from it, as a kubelet does: whose certificate it shows does not matter.
    const request = send(
      url,
      { agent: false, signal: AbortSignal.timeout(LIMIT_MS), rejectUnauthorized: false },
      (response) => {
        const { statusCode: status = 0 } = response;
        const done = (failed: readonly Failed[]): void => {
          resolve({ status, failed });
          response.destroy();
        };
        if (status === 200) return done([]);
        const parts: Buffer[] = [];
        let length = 0;
        response.on('data', (part: Buffer) => {
          length += part.length;
          if (length > MAX_BYTES) done([]);
          else parts.push(part);
        });
        // The status is the answer; the rest is told where it came in time.
        response.on('error', () => done([]));
        response.on('end', () => done(failedIn(Buffer.concat(parts).toString('utf8'))));
      },
    );
    request.on('error', fail);
    request.end();
  });
}

/** Another program may listen there: only what has the form of a check is shown. */
function failedIn(text: string): Failed[] {
  const plain = (value: unknown): string => printable(String(value).slice(0, 200));
  try {
    const { checks } = JSON.parse(text) as { readonly checks?: unknown };
    if (!Array.isArray(checks)) return [];
    return (checks as readonly Partial<Record<string, unknown>>[])
      .filter((check) => typeof check['problem'] === 'string')
      .slice(0, 16)
      .map(({ name, problem }) => ({ name: plain(name), problem: plain(problem) }));
  } catch {
    return [];
  }
}
