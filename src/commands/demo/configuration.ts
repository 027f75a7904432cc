interface DemoUser {
  readonly name: string;
  readonly displayName: string;
  readonly email: string;
  readonly group: string;
  readonly id: string;
  readonly passwordHash: string;
}

/** The demo's gatehouse.yaml, as a starting point for a configuration. */
export const renderDemoConfiguration = (
  users: readonly DemoUser[],
  apiPort: number,
): string => `# A gatehouse configuration to start from. While gatehouse runs, changes to this file are applied when it is saved; for
# settings that need a restart (listeners, store, …) the log has restart_needed.
# \`gatehouse check --config gatehouse.yaml\` reports all problems; docs/configuration.md describes every setting.

publicUrl: https://localhost:8443        # the address clients use
listen:
  host: 127.0.0.1                        # 0.0.0.0 to be reached from other machines
  port: 8443
  tls:
    certificate: pki/server.pem          # paths are relative to this file
    key: pki/server-key.pem
admin:                                   # probes: /livez, /readyz
  host: 127.0.0.1
  port: 9443

store:
  path: data                             # grants and revocations; survives restarts
keys:
  file: data/keys.json                   # created on the first start; keep a copy in a safe place

certificates:
  issuers: [pki/ca.pem]                  # whose client certificates are accepted; put your own CA here
  identityFrom: commonName               # commonName | email | userPrincipalName | dnsName | uri
  directory: staff                       # where that name is looked up

directories:
  staff:
    label: local                         # identities look like local:{...}
    users:
${users.map(renderUser).join('')}
integrations:                            # the programs that may request tokens
  - clientId: report-runner
    name: Report runner
    scope: reports:read,write;files:read # the maximum scope of its tokens
    grants: [certificate, device]
    access:                              # who may use it, and with which scope
      - groups: [operators]
      - groups: [readers]
        scope: files:read                # readers get this part only

pages:
  url: shared                            # the demo API serves no HTML; in production: https://login.example.test

introspection:                           # who may introspect tokens: your other services
  access:
    - groups: [operators]                # with a client certificate

upstreams:
  default:
    url: http://127.0.0.1:${apiPort}           # your API; npm start uses the demo API instead

routes:                                  # first match wins; requests without a match are denied
  - path: /health
    public: true                         # no token needed
  - path: /files/**
    methods: [GET, HEAD]
    requires: files:read
  - path: /reports/**
    methods: [GET, HEAD]
    requires: reports:read
  - path: /reports/**
    requires: reports:write
  - path: /whoami
    requires: any-token

shutdown: { preStop: 0s, drain: 2s }     # behind a load balancer: preStop: 5s, drain: 30s
log: { level: info, format: text, access: { enabled: false } }   # in production: remove this line
`;

const renderUser = ({ id, name, displayName, email, group, passwordHash }: DemoUser): string =>
  `      - id: "${id}"
        name: ${name}                      # what is typed at sign-in
        displayName: ${displayName}
        commonName: ${name}                # as in the certificate
        email: ${email}
        groups: [${group}]
        passwordHash: "${passwordHash}"
`;
