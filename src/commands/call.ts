import { explainConnectionError } from '../client/connection-error.ts';
import { isForwardableMethod } from '../domain/request-target.ts';
import { type HttpRequest, readAtMost, sendOnce } from '../lib/http-client.ts';
import { printableLines } from '../lib/printable.ts';
import {
  COMMON_METHODS,
  type Command,
  type CommandContext,
  CommandError,
  EXIT,
  UsageError,
  writeJson,
} from './command.ts';
import { readTlsFiles, type TlsFiles } from './files.ts';
import { parseWebUrl, requireSecureUrl } from './web-url.ts';

const TIMEOUT_MS = 30_000;
const MAX_BYTES = 16 * 1_048_576;

export const command: Command = {
  name: 'call',
  summary: 'sends one HTTP request and prints the response, for images without curl',
  usage: ['gatehouse call [options] [METHOD] URL'],
  options: {
    cert: { value: 'FILE', help: 'client certificate, PEM' },
    key: { value: 'FILE', help: 'its private key, PEM' },
    cacert: { value: 'FILE', help: 'the CA to trust, PEM (default: the CAs built into Node)' },
    header: { short: 'H', multiple: true, value: 'NAME:VALUE', help: 'may be repeated' },
    data: {
      short: 'd',
      multiple: true,
      value: 'BODY',
      help: 'request body, a form unless a header sets another type; several are joined with &',
    },
    'show-status': { help: 'print the status after the body' },
  },
  positionals: { min: 1, max: 2, complete: [COMMON_METHODS] },
  notes: [
    'The default METHOD is GET, or POST with a body. Exit code 0 with any response, 69 without one.',
    '--output json prints status, headers and body.',
    'Control characters in the body are printed as escapes. Credentials are sent over https or to this machine only.',
  ],
  async run(context) {
    const url = parseWebUrl('gatehouse call: URL', context.positionals.at(-1) ?? '', { scheme: 'https' });
    const data = context.options('data');
    const body = data.length === 0 ? undefined : data.join('&');
    const defaultMethod = body === undefined ? 'GET' : 'POST';
    const method = context.positionals.length === 2 ? (context.positionals[0] ?? '') : defaultMethod;
    if (!isForwardableMethod(method)) throw new UsageError('gatehouse call: write METHOD in capitals, such as GET');
    const files = readTlsFiles(context, 'gatehouse call');
    const headers = buildHeaders(context, body);
    if (hasSecret(headers, url, body)) requireSecureUrl('gatehouse call', url);
    const response = await send(url, { method, headers, body }, files);
    if (context.json) writeJson(context, response);
    else {
      const suffix = context.flag('show-status') ? `  [${response.status}]` : '';
      context.stdout(`${printableLines(response.body).replace(/\n$/, '')}${suffix}\n`);
    }
  },
};

type Headers = Readonly<Record<string, string>>;

function buildHeaders(context: CommandContext, body: string | undefined): Headers {
  const headers: Record<string, string> = { 'user-agent': 'gatehouse-call', accept: '*/*' };
  if (body !== undefined) headers['content-type'] = 'application/x-www-form-urlencoded';
  for (const text of context.options('header')) {
    const [, name, value] = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e]*)$/.exec(text) ?? [];
    // An invalid header is not quoted: its value may be a secret.
    if (name === undefined || value === undefined)
      throw new UsageError('gatehouse call: -H takes name:value in printable ASCII');
    const problem = findHeaderProblem(name.toLowerCase(), value, Buffer.byteLength(body ?? ''));
    if (problem !== undefined) throw new UsageError(`gatehouse call: -H ${name}: ${problem}`);
    headers[name.toLowerCase()] = value;
  }
  return headers;
}

/** RFC 9110 §5.6.2. */
const TOKEN = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;
const CONNECTION_HEADERS: readonly string[] = ['expect', 'keep-alive', 'transfer-encoding', 'upgrade'];

/** Headers that undici does not send, or only with some values. */
function findHeaderProblem(name: string, value: string, bodyLength: number): string | undefined {
  if (CONNECTION_HEADERS.includes(name))
    return 'this header cannot be set, because it controls the connection; omit it';
  if (name === 'connection' && !value.split(',').every((option) => TOKEN.test(option.trim())))
    return 'must be a list of connection options, such as close';
  if (name === 'content-length' && value !== String(bodyLength))
    return `must be the length of the body, ${bodyLength}; omit it`;
  return undefined;
}

const SECRET_HEADERS = /(?:^|-)(?:authorization|cookie|dpop|token|secret|password|api-?key)(?:-|$)/;
const SECRET_FIELDS =
  /(?:^|[?&{,"\s])(?:(?:access_|refresh_|id_)?token|device_code|user_code|client_secret|(?:client_)?assertion|password|api_?key)"?\s*[:=]/i;

const hasSecret = (headers: Headers, { search }: URL, body = ''): boolean =>
  Object.keys(headers).some((name) => SECRET_HEADERS.test(name)) || isSecret(search) || isSecret(body);

/** Parameter names may be percent-encoded. */
const isSecret = (text: string): boolean => SECRET_FIELDS.test(text) || SECRET_FIELDS.test(decodePercent(text));

function decodePercent(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return '';
  }
}

async function send(url: URL, request: HttpRequest, { ca, cert, key }: TlsFiles) {
  try {
    return await sendOnce(url, {
      timeoutMs: TIMEOUT_MS,
      ca,
      certificate: cert && key && { cert, key },
      request,
      async read(response) {
        const body = await readAtMost(response.body, MAX_BYTES);
        if (body === undefined) throw new CommandError(`${url.origin} sent more than 16 MiB`, EXIT.unavailable);
        const { status, headers } = response;
        return { status, headers, body: body.toString('utf8') };
      },
    });
  } catch (error) {
    if (error instanceof CommandError) throw error;
    const context = { url, caOption: '--cacert FILE', hasCa: ca !== undefined, timeoutMs: TIMEOUT_MS };
    const { message } = explainConnectionError(error, context);
    throw new CommandError(`${url.origin} ${message}`, EXIT.unavailable);
  }
}
