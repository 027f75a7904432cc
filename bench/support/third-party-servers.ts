import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { freePort } from '../../test/support/front-proxy.ts';
import { launch, waitUntilReady } from './programs.ts';
import { type BenchEnvironment, type BenchServer, startServer } from './servers.ts';
import type { Algorithm, ThirdPartyTokens } from './third-party-tokens.ts';

/** With `jwt`, the token's algorithm, signature and expiry are checked for each request, as in HAProxy's documentation. */
export async function startHaproxy(
  environment: BenchEnvironment,
  upstream: number,
  jwt?: { readonly algorithm: Algorithm; readonly tokens: ThirdPartyTokens },
): Promise<BenchServer> {
  if (environment.haproxy === undefined) throw new Error('HAProxy is not installed');
  const port = await freePort();
  const folder = join(environment.folder, `haproxy-${jwt?.algorithm ?? 'plain'}`);
  mkdirSync(folder, { recursive: true });
  const certificateFile = join(folder, 'server.pem');
  const read = (name: string): string => readFileSync(join(environment.folder, name), 'utf8');
  writeFileSync(certificateFile, `${read('server.pem')}\n${read('server-key.pem')}`, { mode: 0o600 });
  const key =
    jwt === undefined ? '' : jwt.algorithm === 'HS256' ? jwt.tokens.secret : jwt.tokens.publicKey(jwt.algorithm);
  const checks =
    jwt === undefined
      ? ''
      : `  http-request set-var(txn.bearer) http_auth_bearer
  http-request set-var(txn.alg) var(txn.bearer),jwt_header_query('$.alg')
  http-request set-var(txn.exp) var(txn.bearer),jwt_payload_query('$.exp','int')
  http-request set-var(txn.now) date()
  http-request deny deny_status 401 unless { var(txn.alg) -m str ${jwt.algorithm} }
  http-request deny deny_status 401 unless { var(txn.bearer),jwt_verify(txn.alg,"${key}") 1 }
  http-request deny deny_status 401 if { var(txn.exp),sub(txn.now) -m int lt 0 }
`;
  const file = join(folder, 'haproxy.cfg');
  writeFileSync(
    file,
    `global
  nbthread 1
  maxconn 8000
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
  option forwardfor
frontend front
  bind 127.0.0.1:${port} backlog 1024 ssl crt ${certificateFile} alpn h2,http/1.1
${checks}  default_backend api
backend api
  server api 127.0.0.1:${upstream} pool-max-conn 200
`,
    { mode: 0o600 },
  );
  return startServer(
    environment.serverCore,
    [environment.haproxy, '-db', '-f', file],
    port,
    join(folder, 'output.log'),
  );
}

export async function startHttpProxy3(environment: BenchEnvironment, upstream: number): Promise<BenchServer> {
  const output = join(environment.folder, 'http-proxy-3.log');
  const script = join(import.meta.dirname, 'http-proxy-server.ts');
  const child = launch(
    environment.serverCore,
    [process.execPath, script, environment.folder, String(upstream)],
    output,
  );
  const program = await waitUntilReady(child, output);
  return { port: program.port, pids: [program.pid], stop: () => program.stop() };
}

export async function startOauth2Proxy(
  environment: BenchEnvironment,
  program: string,
  upstream: number,
  tokens: ThirdPartyTokens,
): Promise<BenchServer> {
  const port = await freePort();
  const args = [
    program,
    `--https-address=127.0.0.1:${port}`,
    '--http-address=',
    `--tls-cert-file=${environment.folder}/server.pem`,
    `--tls-key-file=${environment.folder}/server-key.pem`,
    `--upstream=http://127.0.0.1:${upstream}`,
    '--provider=oidc',
    '--skip-oidc-discovery=true',
    `--oidc-issuer-url=${tokens.issuer}`,
    `--oidc-jwks-url=${tokens.issuer}/jwks.json`,
    `--login-url=${tokens.issuer}/login`,
    `--redeem-url=${tokens.issuer}/redeem`,
    `--client-id=${tokens.audience}`,
    '--client-secret=bench',
    '--cookie-secret=0123456789abcdef0123456789abcdef',
    '--email-domain=*',
    '--skip-jwt-bearer-tokens=true',
    '--request-logging=false',
    '--auth-logging=false',
    '--standard-logging=false',
  ];
  return startServer(environment.serverCore, args, port, join(environment.folder, 'oauth2-proxy.log'));
}

export async function startOathkeeper(
  environment: BenchEnvironment,
  program: string,
  upstream: number,
  tokens: ThirdPartyTokens,
): Promise<BenchServer> {
  const [port, api] = [await freePort(), await freePort()];
  const folder = join(environment.folder, 'oathkeeper');
  mkdirSync(folder, { recursive: true });
  const rules = join(folder, 'rules.json');
  writeFileSync(
    rules,
    JSON.stringify([
      {
        id: 'files',
        upstream: { url: `http://127.0.0.1:${upstream}` },
        match: { url: `https://localhost:${port}/<.*>`, methods: ['GET', 'POST'] },
        authenticators: [{ handler: 'jwt' }],
        authorizer: { handler: 'allow' },
        mutators: [{ handler: 'noop' }],
      },
    ]),
  );
  const file = join(folder, 'config.yaml');
  writeFileSync(
    file,
    stringify({
      log: { level: 'fatal' },
      serve: {
        proxy: {
          host: '127.0.0.1',
          port,
          tls: {
            cert: { path: `${environment.folder}/server.pem` },
            key: { path: `${environment.folder}/server-key.pem` },
          },
        },
        api: { host: '127.0.0.1', port: api },
        prometheus: { host: '127.0.0.1', port: await freePort() },
      },
      access_rules: { repositories: [`file://${rules}`], matching_strategy: 'regexp' },
      authenticators: {
        jwt: {
          enabled: true,
          config: {
            jwks_urls: [`${tokens.issuer}/jwks.json`],
            trusted_issuers: [tokens.issuer],
            allowed_algorithms: ['RS256'],
          },
        },
      },
      authorizers: { allow: { enabled: true } },
      mutators: { noop: { enabled: true } },
    }),
  );
  return startServer(environment.serverCore, [program, 'serve', '--config', file], port, join(folder, 'output.log'));
}
