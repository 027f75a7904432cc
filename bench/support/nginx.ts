import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { freePort } from '../../test/support/front-proxy.ts';
import { type BenchEnvironment, type BenchServer, startServer } from './servers.ts';

/** Starts a single nginx process that uses only the benchmark's folder. */
async function startNginx(
  environment: BenchEnvironment,
  name: string,
  core: number | string,
  port: number,
  http: string,
): Promise<BenchServer> {
  const folder = join(environment.folder, name);
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
  const args = [environment.nginx, '-e', `${folder}/error.log`, '-p', folder, '-c', file];
  return startServer(core, args, port, join(folder, 'output.log'));
}

/** Path of a file that the upstream serves. */
export const upstreamFilePath = ({ folder }: BenchEnvironment, name: string): string => join(folder, 'served', name);

export interface BenchUpstream extends BenchServer {
  readonly tlsPort: number;
}

/** Serves 1 KiB, 100 KiB and the files in its folder, over plain HTTP and over TLS. It shares the core of the load. */
export async function startUpstream(environment: BenchEnvironment): Promise<BenchUpstream> {
  const [port, tlsPort] = [await freePort(), await freePort()];
  const root = upstreamFilePath(environment, '');
  mkdirSync(join(root, 'files'), { recursive: true });
  writeFileSync(join(root, 'files/100k'), Buffer.alloc(100 * 1_024, 'y'));
  const body = 'x'.repeat(1_024);
  const server = await startNginx(
    environment,
    'upstream',
    environment.loadCore,
    port,
    `  open_file_cache max=16;
  server {
    listen 127.0.0.1:${port} backlog=1024;
    listen 127.0.0.1:${tlsPort} ssl backlog=1024;
    ssl_certificate ${environment.folder}/server.pem;
    ssl_certificate_key ${environment.folder}/server-key.pem;
    root ${root};
    location = /files/1k { return 200 "${body}"; }
    location = /reports/1k { return 200 "${body}"; }
    location /files/changing/ { return 200 "${body}"; }
  }`,
  );
  return { ...server, tlsPort };
}

const tlsServer = ({ folder }: BenchEnvironment, port: number, locations: string): string => `  server {
    listen 127.0.0.1:${port} ssl http2 backlog=1024;
    ssl_certificate ${folder}/server.pem;
    ssl_certificate_key ${folder}/server-key.pem;
    ssl_protocols TLSv1.2 TLSv1.3;
${locations}
  }`;

const upstreamBlock = (name: string, port: number): string => `  upstream ${name} {
    server 127.0.0.1:${port};
    keepalive 128;
    keepalive_requests 1000000000;
  }`;

const PROXY_PASS = `      proxy_pass http://api;
      proxy_http_version 1.1;
      proxy_buffers 16 16k;
      proxy_max_temp_file_size 0;
      proxy_set_header Connection "";
      proxy_set_header Host $host;
      proxy_set_header X-Forwarded-For $remote_addr;
      proxy_set_header X-Forwarded-Proto $scheme;
      proxy_set_header X-Forwarded-Host $host;`;

export async function startNginxPlain(environment: BenchEnvironment, upstream: number): Promise<BenchServer> {
  const port = await freePort();
  const server = tlsServer(environment, port, `    location / {\n${PROXY_PASS}\n    }`);
  return startNginx(
    environment,
    'nginx-plain',
    environment.serverCore,
    port,
    `${upstreamBlock('api', upstream)}\n${server}`,
  );
}

/** The same with an upstream over TLS, whose certificate is verified. */
export async function startNginxTlsUpstream(environment: BenchEnvironment, upstream: number): Promise<BenchServer> {
  const port = await freePort();
  const server = tlsServer(
    environment,
    port,
    `    location / {
${PROXY_PASS.replace('http://api', 'https://api')}
      proxy_ssl_trusted_certificate ${environment.folder}/ca.pem;
      proxy_ssl_verify on;
      proxy_ssl_name localhost;
      proxy_ssl_server_name on;
    }`,
  );
  return startNginx(
    environment,
    'nginx-tls-upstream',
    environment.serverCore,
    port,
    `${upstreamBlock('api', upstream)}\n${server}`,
  );
}

/**
 * `auth_request` to a server in the same process that always returns 204. With keep-alive connections, that is the least
 * `auth_request` can cost; without them, it is configured as in nginx's documentation.
 */
export async function startNginxAuthRequest(
  environment: BenchEnvironment,
  upstream: number,
  keepAlive: boolean,
): Promise<BenchServer> {
  const [port, authPort] = [await freePort(), await freePort()];
  const server = tlsServer(
    environment,
    port,
    `    location / {
      auth_request /_auth;
${PROXY_PASS}
    }
    location = /_auth {
      internal;
      proxy_pass http://${keepAlive ? 'yes' : `127.0.0.1:${authPort}`};
${keepAlive ? '      proxy_http_version 1.1;\n      proxy_set_header Connection "";\n' : ''}      proxy_pass_request_body off;
      proxy_set_header Content-Length "";
    }`,
  );
  return startNginx(
    environment,
    keepAlive ? 'nginx-auth-request' : 'nginx-auth-request-new-connections',
    environment.serverCore,
    port,
    `${upstreamBlock('api', upstream)}
${upstreamBlock('yes', authPort)}
  server { listen 127.0.0.1:${authPort}; return 204; }
${server}`,
  );
}

/** Configured as in docs/forward-auth.md; the CPU time of both processes is measured. */
export async function startNginxWithGatehouse(
  environment: BenchEnvironment,
  upstream: number,
  gatehouse: BenchServer,
  ca: string,
): Promise<BenchServer> {
  const port = await freePort();
  const server = tlsServer(
    environment,
    port,
    `    location / {
      auth_request /_gatehouse;
      auth_request_set $gatehouse_user $upstream_http_x_forwarded_user;
      auth_request_set $gatehouse_client $upstream_http_x_forwarded_client_id;
      auth_request_set $gatehouse_scope $upstream_http_x_forwarded_scope;
${PROXY_PASS}
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
    environment,
    'nginx-gatehouse',
    environment.serverCore,
    port,
    `${upstreamBlock('api', upstream)}\n${upstreamBlock('gatehouse', gatehouse.port)}\n${server}`,
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
