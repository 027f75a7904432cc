import { quoteForYaml } from '../quote.ts';
import { type Answers, getListenPort, isLoopbackUrl } from './answers.ts';

export const MCP_PATH = '/mcp';

const isMcp = (answers: Answers): boolean => answers['client-type'] === 'mcp';

export const getScope = (answers: Answers): string => (isMcp(answers) ? 'mcp:use' : 'api:read,write');

/** The name of the provider in `signIn.openid`; it is part of its redirect URI. */
const PROVIDER = 'provider';

/** Renders gatehouse.yaml. `passwordHash` is the hash of the first user's password. */
export function renderConfiguration(answers: Answers, passwordHash: string | undefined): string {
  const signIn = answers['sign-in'];
  return [
    INTRODUCTION,
    renderListeners(answers),
    renderStore(answers),
    signIn === 'certificate'
      ? renderCertificates(answers)
      : renderUsers(answers, passwordHash) + (signIn === 'openid' ? `\n${renderOpenid(answers)}` : ''),
    renderIntegration(answers),
    renderRoutes(answers),
  ].join('\n');
}

/** The value of a question that applies. */
function get(answers: Answers, option: string): string {
  const answer = answers[option];
  if (answer === undefined) throw new Error(`no answer for ${option}`);
  return answer;
}

const getYaml = (answers: Answers, option: string): string => quoteForYaml(get(answers, option));

/** A setting with a comment in the same column as the others, where there is room. */
const line = (setting: string, comment: string): string => `${setting.padEnd(COMMENT_COLUMN - 2)}  # ${comment}\n`;
const COMMENT_COLUMN = 42;

const INTRODUCTION = `# The configuration of gatehouse, written by \`gatehouse init\`. Paths are relative to this file.
# \`gatehouse check --config FILE\` reports all problems; docs/configuration.md describes every setting.
# While gatehouse runs, saved changes apply immediately, except for settings that need a restart (listeners, store):
# for these the log has restart_needed.
`;

function renderListeners(answers: Answers): string {
  const url = get(answers, 'public-url');
  const { port } = new URL(url);
  const isLocal = isLoopbackUrl(url);
  const listener =
    answers['tls'] === 'here'
      ? line(
          `  host: ${isLocal ? '127.0.0.1' : '0.0.0.0'}`,
          isLocal ? '0.0.0.0 to be reachable from other machines' : 'all addresses of this machine',
        ) +
        line(
          `  port: ${getListenPort(answers)}`,
          port === '' ? 'ports below 1024 need CAP_NET_BIND_SERVICE' : 'the port of publicUrl',
        ) +
        `  tls:\n    certificate: ${getYaml(answers, 'tls-certificate')}\n    key: ${getYaml(answers, 'tls-key')}\n`
      : line('  host: 127.0.0.1', 'only the proxy may reach this plain HTTP port') +
        `  port: ${getListenPort(answers)}\n` +
        line('  behindTls: true', 'the proxy terminates TLS');
  return (
    line(`publicUrl: ${quoteForYaml(new URL(url).origin)}`, 'the URL that clients use; it is part of every token') +
    `listen:\n${listener}` +
    (answers['tls'] === 'here'
      ? ''
      : line('trustedProxies: [127.0.0.1]', 'the X-Forwarded-* headers of these peers are trusted')) +
    line('admin:', 'probes (/livez, /readyz), metrics and `gatehouse grants`') +
    `  host: 127.0.0.1\n  port: ${get(answers, 'admin-port')}\n`
  );
}

function renderStore(answers: Answers): string {
  if (answers['store'] === 'embedded')
    return (
      'store:\n  type: embedded\n' +
      line('  path: data', 'back it up: `gatehouse backup`') +
      'keys:\n' +
      line('  file: data/keys.json', 'created on the first start; keep a copy in a safe place')
    );
  const passwordFile = get(answers, 'redis-password-file');
  return (
    `store:\n  type: redis\n  url: ${getYaml(answers, 'redis-url')}\n` +
    (passwordFile === '-' ? '' : `  passwordFile: ${quoteForYaml(passwordFile)}\n`) +
    'keys:\n' +
    line('  file: data/keys.json', 'the same on every replica; keep a copy in a safe place')
  );
}

const renderCertificates = (answers: Answers): string =>
  'certificates:\n' +
  line(`  issuers: [${getYaml(answers, 'client-ca')}]`, 'the CA that issues the client certificates') +
  line('  # crls: [pki/ca.crl]', 'its revocation list; an expired list rejects every certificate') +
  line('  identityFrom: commonName', 'commonName | email | userPrincipalName | dnsName | uri') +
  '  directory: machines\n' +
  'directories:\n  machines:\n    label: machine\n' +
  line('    derive: true', 'every certificate of that CA is an identity; there is no list');

/** With a password, the name is entered at sign-in; without one, the OpenID provider knows the user by the email address. */
function renderUsers(answers: Answers, passwordHash: string | undefined): string {
  const user = get(answers, 'user');
  return (
    'directories:\n  people:\n' +
    line('    label: local', 'identities begin with it, as in local:…') +
    '    users:\n' +
    (passwordHash === undefined
      ? line(`      - name: ${quoteForYaml(user.replace(/@.*$/, ''))}`, 'for lists and logs') +
        line(`        email: ${quoteForYaml(user)}`, 'as the provider reports it')
      : line(`      - name: ${quoteForYaml(user)}`, 'entered at sign-in') +
        '        # `gatehouse hash-password` makes the hash of another password.\n' +
        `        passwordHash: ${JSON.stringify(passwordHash)}\n`) +
    '        groups: [users]\n'
  );
}

function renderOpenid(answers: Answers): string {
  const issuer = get(answers, 'openid-issuer');
  const secretFile = get(answers, 'openid-secret-file');
  return (
    `signIn:\n  openid:\n    ${PROVIDER}:\n` +
    line(`      title: ${quoteForYaml(new URL(issuer).hostname)}`, 'the page shows: Sign in with …') +
    `      # Register this redirect URI there: ${getRedirectUri(answers)}\n` +
    `      issuer: ${quoteForYaml(issuer)}\n` +
    `      clientId: ${getYaml(answers, 'openid-client')}\n` +
    (secretFile === '-'
      ? line('      # clientSecretFile: openid-secret', 'for a confidential client; PKCE is always used')
      : `      clientSecretFile: ${quoteForYaml(secretFile)}\n`) +
    '      scope: openid email\n      directory: people\n' +
    line('      claim: email', 'identifies the user; it must be verified by the provider') +
    '      means: email\n'
  );
}

export const getRedirectUri = (answers: Answers): string =>
  `${new URL(get(answers, 'public-url')).origin}/authsvc/device/openid/${PROVIDER}`;

function renderIntegration(answers: Answers): string {
  const isCertificate = answers['sign-in'] === 'certificate';
  return (
    line('integrations:', 'the programs that may request tokens') +
    `  - clientId: ${getYaml(answers, 'client')}\n` +
    line(`    scope: ${getScope(answers)}`, 'the maximum scope of its tokens') +
    renderGrants(answers) +
    line('    access:', 'who may use it; add entries for others') +
    (isCertificate ? '      - directory: machines\n' : '      - groups: [users]\n')
  );
}

/** With the device grant as well: `gatehouse login` uses it. */
function renderGrants(answers: Answers): string {
  if (answers['sign-in'] === 'certificate') return '    grants: [certificate]\n';
  if (answers['client-type'] === 'device') return '    grants: [device]\n';
  return (
    line('    grants: [code, device]', 'authorization code; device for `gatehouse login`') +
    '    # Where the browser returns to. Loopback URLs match with any port.\n' +
    '    redirectUris: [http://127.0.0.1/callback, http://localhost/callback]\n'
  );
}

const renderRoutes = (answers: Answers): string =>
  'upstreams:\n  default:\n' +
  line(`    url: ${getYaml(answers, 'upstream')}`, 'your API; only gatehouse should be able to reach it') +
  '\n' +
  line('routes:', 'the first match applies; a request without a match is denied') +
  '  # - path: /health\n' +
  line('  #   public: true', 'no token needed') +
  (isMcp(answers)
    ? `${line(`  - path: ${MCP_PATH}`, 'the path of your MCP server')}    requires: ${getScope(answers)}\n`
    : '  - path: /**\n    methods: [GET, HEAD]\n    requires: api:read\n  - path: /**\n    requires: api:write\n');
