import { isLoopbackHost } from '../web-url.ts';

/** What `gatehouse init` asks for, or takes as an option of that name. */
type QuestionName =
  | 'public-url'
  | 'upstream'
  | 'tls'
  | 'admin-port'
  | 'sign-in'
  | 'user'
  | 'store'
  | 'redis-url'
  | 'client'
  | 'client-type';

/** Empty where a question does not apply. */
export type Answers = Readonly<Record<QuestionName, string>>;

/** Returns what is wrong with an answer. */
type Validate = (answer: string, answers: Answers) => string | undefined;

export interface Question {
  /** Placeholder in the help; that of a question with choices lists them. */
  readonly value?: string;
  readonly text: string;
  readonly fallback: string | ((answers: Answers) => string);
  readonly choices?: Readonly<Record<string, string>>;
  /** Asked only after one of these answers to an earlier question; otherwise the option is an error. */
  readonly when?: readonly [option: QuestionName, ...answers: readonly string[]];
  /** It is an option only, and never asked: its default rarely needs a change. */
  readonly isOptionOnly?: boolean;
  readonly validate?: Validate;
}

const matching =
  (pattern: RegExp, problem: string): Validate =>
  (answer) =>
    pattern.test(answer) ? undefined : problem;

/** `$` is left out, because `\${NAME}` in a configuration is a variable. */
const validateText = matching(/^[\x21-\x23\x25-\x7e]+$/, 'must be printable ASCII without spaces or $');

const validateUrl =
  (...protocols: readonly string[]): Validate =>
  (answer, answers) => {
    if (!URL.canParse(answer) || !protocols.includes(new URL(answer).protocol))
      return `must be a URL that begins with ${protocols.map((protocol) => `${protocol}//`).join(' or ')}`;
    const { username, password } = new URL(answer);
    return username !== '' || password !== ''
      ? 'must not contain a user name or password'
      : validateText(answer, answers);
  };

const ADMIN_PORT = 9443;

/** They are asked in this order. */
export const QUESTIONS: Readonly<Record<QuestionName, Question>> = {
  'public-url': {
    value: 'URL',
    text: 'The URL that clients use',
    fallback: 'https://localhost:8443',
    validate(answer, answers) {
      const problem = validateUrl('https:')(answer, answers);
      if (problem !== undefined || new URL(answer).href === `${new URL(answer).origin}/`) return problem;
      return 'must be a scheme, a host and an optional port only, such as https://api.example.test';
    },
  },
  upstream: {
    value: 'URL',
    text: 'The URL of your API',
    fallback: 'http://127.0.0.1:9000',
    validate: validateUrl('http:', 'https:'),
  },
  tls: {
    text: 'Where TLS ends',
    choices: {
      here: 'gatehouse has the server certificate',
      proxy: 'a proxy or load balancer in front of gatehouse, on this machine',
    },
    fallback: 'here',
  },
  'admin-port': {
    value: 'PORT',
    text: `The port of the admin listener (default: ${ADMIN_PORT})`,
    fallback: (answers) => String(getListenPort(answers) === ADMIN_PORT ? ADMIN_PORT + 1 : ADMIN_PORT),
    isOptionOnly: true,
    validate: (answer) =>
      /^[1-9]\d{0,4}$/.test(answer) && Number(answer) <= 65_535 ? undefined : 'must be a port from 1 to 65535',
  },
  'sign-in': {
    text: 'How clients authenticate',
    choices: {
      certificate: 'with a client certificate, without a user; needs --tls here',
      password: 'a user signs in with a password in a browser, and approves',
    },
    fallback: ({ tls }) => (tls === 'here' ? 'certificate' : 'password'),
    validate: (answer, { tls }) =>
      answer === 'certificate' && tls !== 'here'
        ? 'certificate needs --tls here: the proxy would have to forward the certificates (docs/certificates.md)'
        : undefined,
  },
  user: {
    value: 'NAME',
    text: 'The name of the first user',
    fallback: 'alice',
    when: ['sign-in', 'password'],
    validate: matching(/^[A-Za-z0-9][A-Za-z0-9._+@-]{0,127}$/, 'must be a name such as alice, or an email address'),
  },
  store: {
    text: 'Where grants are stored',
    choices: {
      embedded: 'in files on this machine, for a single gatehouse',
      redis: 'in Redis, for several replicas',
    },
    fallback: 'embedded',
  },
  'redis-url': {
    value: 'URL',
    text: 'The URL of Redis',
    fallback: 'redis://127.0.0.1:6379/0',
    when: ['store', 'redis'],
    validate(answer, answers) {
      if (!/^rediss?(?:\+sentinel|\+cluster)?:\/\/\S+$/.test(answer))
        return 'must begin with redis://, rediss://, redis+sentinel:// or redis+cluster://';
      // The command line is visible to other users, and is in the history of the shell.
      if (/^[^/]+\/\/[^@/]*:[^@/]*@/.test(answer))
        return 'must not contain a password; put it into a file, and name the file in store.passwordFile';
      return validateText(answer, answers);
    },
  },
  client: {
    value: 'ID',
    text: 'The client_id of the first program that requests tokens',
    fallback: 'my-client',
    validate: matching(
      /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/,
      'must be 1 to 64 letters, digits, or . _ -, such as my-client',
    ),
  },
  'client-type': {
    text: 'How its users approve it',
    choices: {
      device: 'with a code that they enter in a browser, also on another device',
      code: 'in a browser that the app opens and that returns to it',
      mcp: 'the same, for agents of the Model Context Protocol',
    },
    fallback: 'device',
    when: ['sign-in', 'password'],
  },
};

/** The port of the public listener. */
export const getListenPort = (answers: Answers): number =>
  answers.tls === 'here' ? Number(new URL(answers['public-url']).port || 443) : 8080;

export const isLocal = (answers: Answers): boolean => isLoopbackHost(new URL(answers['public-url']).hostname);
