import { isIP } from 'node:net';

/** Returns what is wrong with an answer. */
type Validate = (answer: string) => string | undefined;

/** What `gatehouse init` asks for. `option` is the flag without dashes. */
export interface Question {
  readonly option: string;
  /** Placeholder in the help; that of a question with choices lists them. */
  readonly value?: string;
  readonly text: string;
  readonly fallback?: string | ((answers: Answers) => string | undefined);
  /** Added to the help of the option. */
  readonly help?: string;
  readonly choices?: Readonly<Record<string, string>>;
  /** Asked only after one of these answers to an earlier question; otherwise the option is an error. */
  readonly when?: readonly [option: string, ...answers: readonly string[]];
  /** Not asked: an option only, with a default that rarely needs a change. */
  readonly isOptionOnly?: boolean;
  readonly validate?: Validate;
}

/** By option. */
export type Answers = Readonly<Record<string, string | undefined>>;

const matching =
  (pattern: RegExp, problem: string): Validate =>
  (answer) =>
    pattern.test(answer) ? undefined : problem;

/** `$` is left out, because `\${NAME}` in a configuration is a variable. */
const validateText = matching(/^[\x21-\x23\x25-\x7e]+$/, 'must be printable ASCII without spaces or $');
const validatePath = matching(/^[^\p{Cc}$]+$/u, 'must be a path without control characters or $');

const validateUrl =
  (...protocols: readonly string[]): Validate =>
  (answer) => {
    if (!URL.canParse(answer) || !protocols.includes(new URL(answer).protocol))
      return `must be a URL that begins with ${protocols.map((protocol) => `${protocol}//`).join(' or ')}`;
    const { username, password } = new URL(answer);
    return username !== '' || password !== '' ? 'must not contain a user name or password' : validateText(answer);
  };

function validatePublicUrl(answer: string): string | undefined {
  const problem = validateUrl('https:')(answer);
  if (problem !== undefined) return problem;
  const { pathname, search, hash } = new URL(answer);
  return pathname === '/' && search === '' && hash === ''
    ? undefined
    : 'must be a scheme, a host and an optional port only, such as https://api.example.test';
}

function validateRedisUrl(answer: string): string | undefined {
  if (!/^rediss?(?:\+sentinel|\+cluster)?:\/\/\S+$/.test(answer))
    return 'must begin with redis://, rediss://, redis+sentinel:// or redis+cluster://';
  // The command line is visible to other users, and is in the history of the shell.
  if (/^[^/]+\/\/[^@/]*:[^@/]*@/.test(answer))
    return 'must not contain a password; put it into a file and use --redis-password-file';
  return validateText(answer);
}

const ADMIN_PORT = 9443;

export const QUESTIONS: readonly Question[] = [
  {
    option: 'public-url',
    value: 'URL',
    text: 'The URL that clients use',
    fallback: 'https://localhost:8443',
    validate: validatePublicUrl,
  },
  {
    option: 'upstream',
    value: 'URL',
    text: 'The URL of your API',
    fallback: 'http://127.0.0.1:9000',
    validate: validateUrl('http:', 'https:'),
  },
  {
    option: 'tls',
    text: 'Where TLS ends',
    choices: {
      here: 'gatehouse has the server certificate',
      proxy: 'a proxy or load balancer in front of gatehouse, on this machine',
    },
    fallback: 'here',
  },
  {
    option: 'tls-certificate',
    value: 'FILE',
    text: 'The server certificate, PEM',
    fallback: 'pki/server.pem',
    when: ['tls', 'here'],
    validate: validatePath,
  },
  {
    option: 'tls-key',
    value: 'FILE',
    text: 'Its private key, PEM',
    fallback: 'pki/server-key.pem',
    when: ['tls', 'here'],
    validate: validatePath,
  },
  {
    option: 'admin-port',
    value: 'PORT',
    text: 'The port of the admin listener',
    fallback: (answers) => (getListenPort(answers) === ADMIN_PORT ? ADMIN_PORT + 1 : ADMIN_PORT).toString(),
    help: `default: ${ADMIN_PORT}`,
    isOptionOnly: true,
    validate: (answer) =>
      /^[1-9]\d{0,4}$/.test(answer) && Number(answer) <= 65_535 ? undefined : 'must be a port from 1 to 65535',
  },
  {
    option: 'sign-in',
    text: 'How clients authenticate',
    choices: {
      certificate: 'with a client certificate, without a user; needs --tls here',
      password: 'a user signs in with a password in a browser, and approves',
      openid: 'the same, but the user signs in at an OpenID provider',
    },
    fallback: (answers) => (answers['tls'] === 'here' ? 'certificate' : 'password'),
  },
  {
    option: 'client-ca',
    value: 'FILE',
    text: 'The CA of the client certificates, PEM',
    fallback: 'pki/ca.pem',
    when: ['sign-in', 'certificate'],
    validate: validatePath,
  },
  {
    option: 'user',
    value: 'NAME',
    text: 'The first user: a name, or with OpenID the email address',
    fallback: (answers) => (answers['sign-in'] === 'password' ? 'alice' : undefined),
    when: ['sign-in', 'password', 'openid'],
    validate: matching(/^[A-Za-z0-9][A-Za-z0-9._+@-]{0,127}$/, 'must be a name such as alice, or an email address'),
  },
  {
    option: 'openid-issuer',
    value: 'URL',
    text: 'The issuer URL of the OpenID provider',
    when: ['sign-in', 'openid'],
    validate: validateUrl('https:'),
  },
  {
    option: 'openid-client',
    value: 'ID',
    text: 'The client_id of gatehouse at the provider',
    fallback: 'gatehouse',
    when: ['sign-in', 'openid'],
    validate: validateText,
  },
  {
    option: 'openid-secret-file',
    value: 'FILE',
    text: 'The file with its client secret (- for none)',
    fallback: '-',
    when: ['sign-in', 'openid'],
    validate: validatePath,
  },
  {
    option: 'store',
    text: 'Where grants are stored',
    choices: {
      embedded: 'in files on this machine, for a single gatehouse',
      redis: 'in Redis, for several replicas',
    },
    fallback: 'embedded',
  },
  {
    option: 'redis-url',
    value: 'URL',
    text: 'The URL of Redis',
    fallback: 'redis://127.0.0.1:6379/0',
    when: ['store', 'redis'],
    validate: validateRedisUrl,
  },
  {
    option: 'redis-password-file',
    value: 'FILE',
    text: 'The file with the Redis password (- for none)',
    fallback: '-',
    when: ['store', 'redis'],
    validate: validatePath,
  },
  {
    option: 'client',
    value: 'ID',
    text: 'The client_id of the first program that requests tokens',
    fallback: 'my-client',
    validate: matching(
      /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/,
      'must be 1 to 64 letters, digits, or . _ -, such as my-client',
    ),
  },
  {
    option: 'client-type',
    text: 'How its users approve it',
    choices: {
      device: 'with a code that they enter in a browser, also on another device',
      code: 'in a browser that the app opens and that returns to it',
      mcp: 'the same, for agents of the Model Context Protocol',
    },
    fallback: 'device',
    when: ['sign-in', 'password', 'openid'],
  },
];

/** The port of the public listener. */
export const getListenPort = (answers: Answers): number =>
  answers['tls'] === 'here' ? Number(new URL(answers['public-url'] ?? '').port || 443) : 8080;

export const isLoopbackUrl = (url: string): boolean => {
  const host = new URL(url).hostname.replace(/^\[|\]$/g, '');
  return host === 'localhost' || host === '::1' || (isIP(host) === 4 && host.startsWith('127.'));
};
