import { explainConnectionError } from '../client/connection-error.ts';
import { readResponseText } from '../http/read-response.ts';
import { sendOnce } from '../lib/http-client.ts';
import { printable } from '../lib/printable.ts';
import { resolveAdminUrl } from './admin-client.ts';
import { CONFIG_OPTIONS, type Command, CommandError, EXIT, writeJson } from './command.ts';

const TIMEOUT_MS = 2_000;

export const command: Command = {
  name: 'health',
  summary: 'checks whether the running gatehouse is ready, for container probes',
  usage: ['gatehouse health [--config FILE]', 'gatehouse health --url http://127.0.0.1:9443'],
  options: {
    ...CONFIG_OPTIONS,
    url: { value: 'URL', help: 'the admin listener, instead of reading the configuration' },
  },
  notes: ['Exit code 0 when ready, 69 when not ready or without a response within 2 seconds.'],
  async run(context) {
    const { url: adminUrl } = await resolveAdminUrl(context, 'gatehouse health');
    const url = new URL('/readyz', adminUrl);
    const { status, failed = [], why = `responded with ${status}` } = await requestHealth(url);
    const ready = status === 200;
    if (context.json)
      writeJson(context, {
        ready,
        url: url.href,
        ...(!ready && { why, ...(failed.length > 0 && { failed }) }),
      });
    else if (ready) context.stdout('ready\n');
    else {
      const failures = failed.map(({ name, problem }) => `${name} (${problem})`).join(', ');
      throw new CommandError(`not ready: ${failures || `${url.href} ${why}`}`, EXIT.unavailable);
    }
    return ready ? EXIT.ok : EXIT.unavailable;
  },
};

interface FailedCheck {
  readonly name: string;
  readonly problem: string;
}

const MAX_BYTES = 64 * 1_024;

async function requestHealth(url: URL): Promise<{ status?: number; failed?: readonly FailedCheck[]; why?: string }> {
  try {
    return await sendOnce(url, {
      timeoutMs: TIMEOUT_MS,
      // As a kubelet does: the certificate is not verified.
      verifyServer: false,
      async read(response) {
        const { status } = response;
        if (status === 200) return { status };
        try {
          return { status, failed: parseFailedChecks(await readResponseText(response, MAX_BYTES)) };
        } catch {
          // The status is sufficient: an unreadable body is ignored.
          return { status };
        }
      },
    });
  } catch (error) {
    const context = { url, caOption: '', hasCa: false, timeoutMs: TIMEOUT_MS };
    return { why: explainConnectionError(error, context).message };
  }
}

/** Another program may listen there: shows only what has the form of a check. */
function parseFailedChecks(text: string): FailedCheck[] {
  const toPrintable = (value: unknown): string => printable(String(value).slice(0, 200));
  const { checks } = JSON.parse(text) as { readonly checks?: unknown };
  if (!Array.isArray(checks)) return [];
  return (checks as readonly Partial<Record<string, unknown>>[])
    .filter((check) => typeof check['problem'] === 'string')
    .slice(0, 16)
    .map(({ name, problem }) => ({ name: toPrintable(name), problem: toPrintable(problem) }));
}
