import { request as httpRequest } from 'node:http';
import { request as httpsRequest } from 'node:https';
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
    const answer = await ask(url);
    const ready = answer === 200;
    const why = typeof answer === 'number' ? `answered ${answer}` : answer;
    if (context.json) writeJson(context, { ready, url: url.href, ...(!ready && { why }) });
    else if (ready) context.stdout('ready\n');
    else throw new CommandError(`not ready: ${url.href} ${why}`, EXIT.unavailable);
    return ready ? EXIT.ok : EXIT.unavailable;
  },
};

async function addressOf(context: Context): Promise<URL | number> {
  const given = context.option('url');
  if (given !== undefined) {
    if (!URL.canParse(given) || !/^https?:$/.test(new URL(given).protocol))
      throw new UsageError('gatehouse health: --url is an http or https address');
    return new URL('/readyz', given);
  }
  const loaded = await settingsFor(context);
  if (typeof loaded === 'number') return loaded;
  const { admin } = loaded.settings;
  if (admin.port === 0)
    throw new UsageError('gatehouse health: admin.port is 0 (any free port); name the address with --url');
  return new URL('/readyz', adminUrl(admin));
}

/** The status of the answer, or why there is none. */
function ask(url: URL): Promise<number | string> {
  return new Promise((resolve) => {
    const send = url.protocol === 'https:' ? httpsRequest : httpRequest;
    // Only "ready" or "not ready" is learned from it, as a kubelet does: whose certificate it shows does not matter.
    const request = send(
      url,
      { agent: false, signal: AbortSignal.timeout(LIMIT_MS), rejectUnauthorized: false },
      (response) => {
        resolve(response.statusCode ?? 0);
        response.destroy();
      },
    );
    request.on('error', (error: NodeJS.ErrnoException) => {
      if (error.name === 'AbortError' || error.name === 'TimeoutError')
        resolve(`did not answer within ${LIMIT_MS / 1_000} s`);
      else resolve(`cannot be reached (${error.code ?? error.message})`);
    });
    request.end();
  });
}
