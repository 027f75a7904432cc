import { readFileSync } from 'node:fs';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import { request as httpsRequest, type RequestOptions } from 'node:https';
import { resolve } from 'node:path';
import { connectionTrouble } from '../client/connection-trouble.ts';
import { printableLines } from '../client/printable.ts';
import { isMethod } from '../domain/method.ts';
import { mustBePrivate, webAddress } from './address.ts';
import { mustBePair } from './certificate-files.ts';
import { type Command, CommandError, type Context, EXIT, UsageError, writeJson } from './command.ts';

const LIMIT_MS = 30_000;
const MAX_BYTES = 16 * 1_048_576;

export const command: Command = {
  name: 'call',
  summary: 'sends one HTTP request and prints the answer: where curl is not installed',
  usage: ['gatehouse call [options] [METHOD] URL'],
  options: {
    cert: { type: 'string', value: 'FILE', help: 'client certificate, PEM' },
    key: { type: 'string', value: 'FILE', help: 'its private key, PEM' },
    cacert: { type: 'string', value: 'FILE', help: 'the CA to trust, PEM (default: those of the runtime)' },
    header: { type: 'string', short: 'H', multiple: true, value: 'NAME:VALUE', help: 'may be repeated' },
    data: {
      type: 'string',
      short: 'd',
      multiple: true,
      value: 'BODY',
      help: 'a form unless a header says otherwise; several are joined by &',
    },
    'show-status': { type: 'boolean', help: 'put the status behind the body' },
  },
  words: { least: 1, most: 2 },
  notes: [
    'METHOD is GET, or POST with a body, unless told. Exit code 0 with any answer, 69 without one.',
    '--output json prints status, headers and body.',
    'Control characters in the body are printed as escapes. Credentials are sent over https, or to this machine only.',
  ],
  async run(context) {
    const url = webAddress('gatehouse call: URL', context.words.at(-1) ?? '', { scheme: 'https' });
    const data = context.options('data');
    const body = data.length === 0 ? undefined : data.join('&');
    const method = context.words.length === 2 ? context.words[0] : body === undefined ? 'GET' : 'POST';
    if (!isMethod(method ?? ''))
      throw new UsageError('gatehouse call: METHOD is written in capitals, such as GET');
    const files = {
      ...fileOption(context, 'cert', 'cert'),
      ...fileOption(context, 'key', 'key'),
      ...fileOption(context, 'cacert', 'ca'),
    };
    mustBePair(files);
    const headers = headersOf(context, body);
    if (hasSecret(headers, url, body)) mustBePrivate('gatehouse call', url);
    const answer = await send(url, {
      method,
      agent: false,
      headers,
      signal: AbortSignal.timeout(LIMIT_MS),
      // Named, so that no environment variable can turn it off.
      rejectUnauthorized: true,
      ...files,
      body,
    });
    const { status, text } = answer;
    if (context.json) writeJson(context, { status, headers: answer.headers, body: text });
    else {
      const tail = context.flag('show-status') ? `  [${status}]` : '';
      context.stdout(`${printableLines(text).replace(/\n$/, '')}${tail}\n`);
    }
    return EXIT.ok;
  },
};

function headersOf(context: Context, body: string | undefined): Record<string, string | number> {
  const headers: Record<string, string | number> = { 'user-agent': 'gatehouse-call', accept: '*/*' };
  if (body !== undefined) {
    headers['content-type'] = 'application/x-www-form-urlencoded';
    headers['content-length'] = Buffer.byteLength(body);
  }
  for (const text of context.options('header')) {
    // What follows the colon may be a secret, so a header that is wrong is not quoted.
    const [, name, value] = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e]*)$/.exec(text) ?? [];
    if (name === undefined || value === undefined)
      throw new UsageError('gatehouse call: -H takes name:value in printable ASCII');
    headers[name.toLowerCase()] = value;
  }
  return headers;
}

const SECRET_HEADERS = /(?:^|-)(?:authorization|cookie|dpop|token|secret|password|api-?key)(?:-|$)/;
const SECRET_FIELDS =
  /(?:^|[?&{,"\s])(?:(?:access_|refresh_|id_)?token|device_code|user_code|client_secret|(?:client_)?assertion|password|api_?key)"?\s*[:=]/i;

/** Names of parameters may be percent-encoded. */
const isSecret = (text: string): boolean => SECRET_FIELDS.test(text) || SECRET_FIELDS.test(decoded(text));

function decoded(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return '';
  }
}

const hasSecret = (headers: Readonly<Record<string, unknown>>, { search }: URL, body = ''): boolean =>
  Object.keys(headers).some((name) => SECRET_HEADERS.test(name)) || isSecret(search) || isSecret(body);

type Files = Partial<Readonly<Record<'cert' | 'key' | 'ca', Buffer>>>;

function fileOption(context: Context, option: string, name: keyof Files): Files {
  const file = context.option(option);
  if (file === undefined) return {};
  try {
    return { [name]: readFileSync(resolve(context.cwd, file)) };
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    throw new CommandError(`--${option} ${file} cannot be read (${code})`, EXIT.configuration);
  }
}

interface Answer {
  readonly status: number;
  readonly headers: IncomingMessage['headers'];
  readonly text: string;
}

function send(
  url: URL,
  { body, ...options }: RequestOptions & { readonly body: string | undefined },
): Promise<Answer> {
  return new Promise((answered, failed) => {
    const fail = (error: NodeJS.ErrnoException): void => {
      const late = error.name === 'AbortError' || error.name === 'TimeoutError';
      const why = late
        ? `did not answer within ${LIMIT_MS / 1_000} s`
        : connectionTrouble(error, { url, caBy: '--cacert FILE', caGiven: options.ca !== undefined }).words;
      failed(new CommandError(`${url.origin} ${why}`, EXIT.unavailable));
    };
    try {
      const request = url.protocol === 'https:' ? httpsRequest : httpRequest;
      const sent = request(url, options, (response) => {
        const parts: Buffer[] = [];
        let length = 0;
        response.on('data', (part: Buffer) => {
          length += part.length;
          if (length > MAX_BYTES) response.destroy(new Error('the answer is larger than 16 MiB'));
          else parts.push(part);
        });
        response.on('error', fail);
        response.on('end', () =>
          answered({
            status: response.statusCode ?? 0,
            headers: response.headers,
            text: Buffer.concat(parts).toString('utf8'),
          }),
        );
      });
      sent.on('error', fail);
      sent.end(body);
    } catch (error) {
      // A certificate or key that cannot be read is thrown at once.
      fail(error as NodeJS.ErrnoException);
    }
  });
}
