import { quoteForYaml } from '../quote.ts';
import { type Answers, getListenPort, isLocal } from './questions.ts';

export const MCP_PATH = '/mcp';

const isMcp = (answers: Answers): boolean => answers['client-type'] === 'mcp';

export const getScope = (answers: Answers): string => (isMcp(answers) ? 'mcp:use' : 'api:read,write');

/** Renders gatehouse.yaml. `passwordHash` is the hash of the first user's password, if there is a user. */
export const renderConfiguration = (answers: Answers, passwordHash: string): string =>
  alignComments(`# The configuration of gatehouse, written by \`gatehouse init\`. Paths are relative to this file.
# \`gatehouse check --config FILE\` reports all problems; docs/configuration.md describes every setting.
# While gatehouse runs, saved changes apply immediately, except for settings that need a restart (listeners, store):
# for these the log has restart_needed.

publicUrl: ${quoteForYaml(new URL(answers['public-url']).origin)}  # the URL that clients use; it is part of every token
listen:
${renderListener(answers)}admin:  # probes (/livez, /readyz), metrics and \`gatehouse grants\`
  host: 127.0.0.1
  port: ${answers['admin-port']}

${renderStore(answers)}
${answers['sign-in'] === 'certificate' ? CERTIFICATES : renderUsers(answers, passwordHash)}
integrations:  # the programs that may request tokens
  - clientId: ${quoteForYaml(answers.client)}
    scope: ${getScope(answers)}  # the maximum scope of its tokens
${renderGrants(answers)}    access:  # who may use it; add entries for others
      - ${answers['sign-in'] === 'certificate' ? 'directory: machines' : 'groups: [users]'}

upstreams:
  default:
    url: ${quoteForYaml(answers.upstream)}  # your API; only gatehouse should be able to reach it

routes:  # the first match applies; a request without a match is denied
  # - path: /health
  #   public: true  # no token needed
${isMcp(answers) ? MCP_ROUTE : API_ROUTES}`);

/** Comments at the end of a line begin in the same column, where there is room. */
const alignComments = (text: string): string =>
  text.replaceAll(/^(.*\S) {2}# /gm, (_, setting: string) => `${setting.padEnd(COMMENT_COLUMN - 2)}  # `);
const COMMENT_COLUMN = 42;

function renderListener(answers: Answers): string {
  const port = getListenPort(answers);
  if (answers.tls === 'proxy')
    return `  host: 127.0.0.1  # only the proxy may reach this plain HTTP port
  port: ${port}
  behindTls: true  # the proxy terminates TLS
trustedProxies: [127.0.0.1]  # the X-Forwarded-* headers of these peers are trusted
`;
  const host = isLocal(answers)
    ? '127.0.0.1  # 0.0.0.0 to be reachable from other machines'
    : '0.0.0.0  # all addresses of this machine';
  return `  host: ${host}
  port: ${port}  # ${port < 1_024 ? 'ports below 1024 need CAP_NET_BIND_SERVICE' : 'the port of publicUrl'}
  tls:
    certificate: pki/server.pem
    key: pki/server-key.pem
`;
}

const renderStore = (answers: Answers): string =>
  answers.store === 'embedded'
    ? `store:
  type: embedded
  path: data  # back it up: \`gatehouse backup\`
keys:
  file: data/keys.json  # created on the first start; keep a copy in a safe place
`
    : `store:
  type: redis
  url: ${quoteForYaml(answers['redis-url'])}
  # passwordFile: redis-password  # a file with the password of Redis
keys:
  file: data/keys.json  # the same on every replica; keep a copy in a safe place
`;

const CERTIFICATES = `certificates:
  issuers: [pki/ca.pem]  # the CA that issues the client certificates
  # crls: [pki/ca.crl]  # its revocation list; an expired list rejects every certificate
  identityFrom: commonName  # commonName | email | userPrincipalName | dnsName | uri
  directory: machines
directories:
  machines:
    label: machine
    derive: true  # every certificate of that CA is an identity; there is no list
`;

const renderUsers = (answers: Answers, passwordHash: string): string => `directories:
  people:
    label: local  # identities begin with it, as in local:…
    # To let users sign in at an OpenID provider instead, see signIn.openid in docs/configuration.md.
    users:
      - name: ${quoteForYaml(answers.user)}  # entered at sign-in
        # \`gatehouse hash-password\` makes the hash of another password.
        passwordHash: ${JSON.stringify(passwordHash)}
        groups: [users]
`;

/** The device grant is included, because `gatehouse login` uses it. */
function renderGrants(answers: Answers): string {
  if (answers['sign-in'] === 'certificate') return '    grants: [certificate]\n';
  if (answers['client-type'] === 'device') return '    grants: [device]\n';
  return `    grants: [code, device]  # authorization code; device for \`gatehouse login\`
    # Where the browser returns to. Loopback URLs match with any port.
    redirectUris: [http://127.0.0.1/callback, http://localhost/callback]
`;
}

const MCP_ROUTE = `  - path: ${MCP_PATH}  # the path of your MCP server
    requires: mcp:use
`;

const API_ROUTES = `  - path: /**
    methods: [GET, HEAD]
    requires: api:read
  - path: /**
    requires: api:write
`;
