import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { type AddressInfo, connect, createServer } from 'node:net';
import { join } from 'node:path';
import { stringify } from 'yaml';
import type { Algorithm, ForeignTokens } from './foreign-tokens.ts';
import { end, launch, untilReady } from './programs.ts';

/** A server that takes part: where it listens, and whose CPU time counts. */
export interface Front {
  readonly port: number;
  readonly pids: readonly number[];
  stop(): Promise<void>;
}

/** What all of them are started with. */
export interface Stage {
  /** Certificates, and room for configurations and logs. */
  readonly folder: string;
  readonly serverCore: number | string;
  readonly loadCore: number | string;
  readonly nginx: string;
  readonly haproxy?: string;
}

export async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

const START_SECONDS = 20;

/** Starts a program and waits until its port is open. */
async function start(
  core: number | string,
  words: readonly string[],
  port: number,
  output: string,
): Promise<Front> {
  const child = launch(core, words, output, 'in the output');
  const until = performance.now() + START_SECONDS * 1_000;
  while (!(await isOpen(port))) {
    if (child.exitCode !== null || performance.now() > until) {
      await end(child);
      throw new Error(`${words[0]} did not start: ${readFileSync(output, 'utf8').slice(-400)}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return { port, pids: [child.pid ?? 0], stop: () => end(child) };
}

const isOpen = (port: number): Promise<boolean> =>
  new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1');
    socket.once('connect', () => resolve(true)).once('error', () => resolve(false));
    socket.once('connect', () => socket.destroy());
  });

/** One process, on nobody's paths but ours. */
async function startNginx(
  stage: Stage,
  name: string,
  core: number | string,
  port: number,
  http: string,
): Promise<Front> {
  const folder = join(stage.folder, name);
  mkdirSync(folder, { recursive: true });
  const temporary = ['client_body', 'proxy', 'fastcgi', 'uwsgi', 'scgi']
    .map((kind) => `  ${kind}_temp_path ${folder}/${kind};`)
    .join('\n');
  const file = join(folder, 'nginx.conf');
  writeFileSync(
    file,
    `daemon off;
master_process off;
pid ${folder}/nginx.pid;
error_log ${folder}/error.log error;
worker_rlimit_nofile 16384;
events { worker_connections 8192; }
http {
  access_log off;
  default_type application/octet-stream;
  keepalive_timeout 65s;
  keepalive_requests 1000000000;
  sendfile on;
  tcp_nodelay on;
${temporary}
${http}
}
`,
  );
  const words = [stage.nginx, '-e', `${folder}/error.log`, '-p', folder, '-c', file];
  return start(core, words, port, join(folder, 'output.log'));
}

/** What the upstream serves as files. */
export const upstreamFile = ({ folder }: Stage, name: string): string => join(folder, 'served', name);

/** Answers 1 KiB and 100 KiB, and whatever lies in its folder. As cheap as can be: it shares the load's core. */
export async function startUpstream(stage: Stage): Promise<Front> {
  const port = await freePort();
  const root = upstreamFile(stage, '');
  mkdirSync(join(root, 'files'), { recursive: true });
  writeFileSync(join(root, 'files/100k'), Buffer.alloc(100 * 1_024, 'y'));
  const body = 'x'.repeat(1_024);
  return startNginx(
    stage,
    'upstream',
    stage.loadCore,
    port,
    `  open_file_cache max=16;
  server {
    listen 127.0.0.1:${port} backlog=1024;
    root ${root};
    location = /files/1k { return 200 "${body}"; }
    location = /reports/1k { return 200 "${body}"; }
  }`,
  );
}

const tlsServer = ({ folder }: Stage, port: number, inside: string): string => `  server {
    listen 127.0.0.1:${port} ssl http2 backlog=1024;
    ssl_certificate ${folder}/server.pem;
    ssl_certificate_key ${folder}/server-key.pem;
    ssl_protocols TLSv1.2 TLSv1.3;
${inside}
  }`;

const pool = (name: string, port: number): string => `  upstream ${name} {
    server 127.0.0.1:${port};
    keepalive 128;
    keepalive_requests 1000000000;
  }`;

const PASS = `      proxy_pass http://api;
      proxy_http_version 1.1;
      proxy_buffers 16 16k;
      proxy_max_temp_file_size 0;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      proxy_set_header X-Forwarded-For $remote_addr;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header X-Forwarded-Host $host;`;

export async function nginxPlain(stage: Stage, upstream: number): Promise<Front> {
  const port = await freePort();
  const server = tlsServer(stage, port, `    location / {\n${PASS}\n    }`);
  return startNginx(stage, 'nginx-plain', stage.serverCore, port, `${pool('api', upstream)}\n${server}`);
}

/** Asks a server that always says yes, in the same process: the least auth_request can cost. */
export async function nginxAuthRequest(stage: Stage, upstream: number): Promise<Front> {
  const [port, yes] = [await freePort(), await freePort()];
  const server = tlsServer(
    stage,
    port,
    `    location / {
      auth_request /_auth;
${PASS}
    }
    location = /_auth {
      internal;
      proxy_pass http://yes;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_pass_request_body off;
      proxy_set_header Content-Length "";
    }`,
  );
  return startNginx(
    stage,
    'nginx-auth-request',
    stage.serverCore,
    port,
    `${pool('api', upstream)}
${pool('yes', yes)}
  server { listen 127.0.0.1:${yes}; return 204; }
${server}`,
  );
}

/** As docs/forward-auth.md says; both processes count. */
export async function nginxWithGatehouse(
  stage: Stage,
  upstream: number,
  gatehouse: Front,
  ca: string,
): Promise<Front> {
  const port = await freePort();
  const server = tlsServer(
    stage,
    port,
    `    location / {
      auth_request /_gatehouse;
      auth_request_set $gatehouse_user $upstream_http_x_forwarded_user;
      auth_request_set $gatehouse_client $upstream_http_x_forwarded_client_id;
      auth_request_set $gatehouse_scope $upstream_http_x_forwarded_scope;
${PASS}
      proxy_set_header Authorization "";
      proxy_set_header X-Forwarded-User $gatehouse_user;
      proxy_set_header X-Forwarded-Client-Id $gatehouse_client;
      proxy_set_header X-Forwarded-Scope $gatehouse_scope;
    }
    location = /_gatehouse {
      internal;
      proxy_pass https://gatehouse/authsvc/check;
      proxy_ssl_verify on;
      proxy_ssl_trusted_certificate ${ca};
      proxy_ssl_name localhost;
      proxy_ssl_server_name on;
      proxy_http_version 1.1;
      proxy_pass_request_body off;
      proxy_pass_request_headers off;
      proxy_set_header Connection "";
      proxy_set_header Host localhost;
      proxy_set_header Authorization $http_authorization;
      proxy_set_header X-Original-Method $request_method;
      proxy_set_header X-Original-URI $request_uri;
      proxy_set_header X-Forwarded-Host $host;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header X-Forwarded-For $remote_addr;
      proxy_set_header X-Request-Id $request_id;
    }`,
  );
  const front = await startNginx(
    stage,
    'nginx-gatehouse',
    stage.serverCore,
    port,
    `${pool('api', upstream)}\n${pool('gatehouse', gatehouse.port)}\n${server}`,
  );
  return {
    port,
    pids: [...front.pids, ...gatehouse.pids],
    async stop() {
      await front.stop();
      await gatehouse.stop();
    },
  };
}

/** With an algorithm: token, signature and expiry are checked for each request, as HAProxy's own documentation shows. */
export async function haproxy(
  stage: Stage,
  upstream: number,
  jwt?: { readonly algorithm: Algorithm; readonly tokens: ForeignTokens },
): Promise<Front> {
  if (stage.haproxy === undefined) throw new Error('haproxy is not there');
  const port = await freePort();
  const folder = join(stage.folder, `haproxy-${jwt?.algorithm ?? 'plain'}`);
  mkdirSync(folder, { recursive: true });
  const pair = join(folder, 'server.pem');
  const read = (name: string): string => readFileSync(join(stage.folder, name), 'utf8');
  writeFileSync(pair, `${read('server.pem')}\n${read('server-key.pem')}`, { mode: 0o600 });
  const key =
    jwt === undefined
      ? ''
      : jwt.algorithm === 'HS256'
        ? jwt.tokens.secret
        : jwt.tokens.publicKey(jwt.algorithm);
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
  bind 127.0.0.1:${port} backlog 1024 ssl crt ${pair} alpn h2,http/1.1
${checks}  default_backend api
backend api
  server api 127.0.0.1:${upstream} pool-max-conn 200
`,
    { mode: 0o600 },
  );
  return start(stage.serverCore, [stage.haproxy, '-db', '-f', file], port, join(folder, 'output.log'));
}

export async function httpProxy3(stage: Stage, upstream: number): Promise<Front> {
  const output = join(stage.folder, 'http-proxy-3.log');
  const script = join(import.meta.dirname, 'http-proxy-peer.ts');
  const child = launch(stage.serverCore, [process.execPath, script, stage.folder, String(upstream)], output);
  const program = await untilReady(child, output);
  return { port: program.port, pids: [program.pid], stop: () => program.stop() };
}

export async function oauth2Proxy(
  stage: Stage,
  program: string,
  upstream: number,
  tokens: ForeignTokens,
): Promise<Front> {
  const port = await freePort();
  const words = [
    program,
    `--https-address=127.0.0.1:${port}`,
    '--http-address=',
    `--tls-cert-file=${stage.folder}/server.pem`,
    `--tls-key-file=${stage.folder}/server-key.pem`,
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
  return start(stage.serverCore, words, port, join(stage.folder, 'oauth2-proxy.log'));
}

export async function oathkeeper(
  stage: Stage,
  program: string,
  upstream: number,
  tokens: ForeignTokens,
): Promise<Front> {
  const [port, api] = [await freePort(), await freePort()];
  const folder = join(stage.folder, 'oathkeeper');
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
            cert: { path: `${stage.folder}/server.pem` },
            key: { path: `${stage.folder}/server-key.pem` },
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
  return start(stage.serverCore, [program, 'serve', '--config', file], port, join(folder, 'output.log'));
}
