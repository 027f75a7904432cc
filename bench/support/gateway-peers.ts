import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { ENVOY, envoyArguments } from '../../test/gateways/proxies.ts';
import { getPythonProgram } from '../../test/set-up/programs.ts';
import { freePort } from '../../test/support/front-proxy.ts';
import { type BenchEnvironment, type BenchServer, startServer } from './servers.ts';
import type { ThirdPartyTokens } from './third-party-tokens.ts';

/** Gateways of other projects that terminate TLS in front of the upstream. */

const createFolder = ({ folder }: BenchEnvironment, name: string): string => {
  const path = join(folder, name);
  mkdirSync(path, { recursive: true });
  return path;
};

/** With `tokens`, its JWT filter verifies the token of each request. */
export async function startEnvoyProxy(
  environment: BenchEnvironment,
  upstream: number,
  tokens?: ThirdPartyTokens,
): Promise<BenchServer> {
  const port = await freePort();
  const folder = createFolder(environment, tokens ? 'envoy-jwt' : 'envoy');
  const address = (number: number) => ({ socket_address: { address: '127.0.0.1', port_value: number } });
  const typed = (type: string, value: object = {}) => ({
    '@type': `type.googleapis.com/envoy.extensions.${type}`,
    ...value,
  });
  const jwtFilter = tokens && {
    name: 'jwt',
    typed_config: typed('filters.http.jwt_authn.v3.JwtAuthentication', {
      providers: {
        bench: {
          issuer: tokens.issuer,
          audiences: [tokens.audience],
          local_jwks: { inline_string: readFileSync(tokens.jwksFile, 'utf8') },
          forward: true,
        },
      },
      rules: [{ match: { prefix: '/' }, requires: { provider_name: 'bench' } }],
    }),
  };
  const manager = typed('filters.network.http_connection_manager.v3.HttpConnectionManager', {
    stat_prefix: 'front',
    route_config: {
      virtual_hosts: [{ name: 'all', domains: ['*'], routes: [{ match: { prefix: '/' }, route: { cluster: 'api' } }] }],
    },
    http_filters: [
      ...(jwtFilter ? [jwtFilter] : []),
      { name: 'router', typed_config: typed('filters.http.router.v3.Router') },
    ],
  });
  const tls = typed('transport_sockets.tls.v3.DownstreamTlsContext', {
    common_tls_context: {
      alpn_protocols: ['h2', 'http/1.1'],
      tls_certificates: [
        {
          certificate_chain: { filename: `${environment.folder}/server.pem` },
          private_key: { filename: `${environment.folder}/server-key.pem` },
        },
      ],
    },
  });
  const file = join(folder, 'envoy.yaml');
  writeFileSync(
    file,
    stringify({
      static_resources: {
        listeners: [
          {
            name: 'front',
            address: address(port),
            filter_chains: [
              {
                filters: [{ name: 'http', typed_config: manager }],
                transport_socket: { name: 'tls', typed_config: tls },
              },
            ],
          },
        ],
        clusters: [
          {
            name: 'api',
            type: 'STATIC',
            load_assignment: {
              cluster_name: 'api',
              endpoints: [{ lb_endpoints: [{ endpoint: { address: address(upstream) } }] }],
            },
          },
        ],
      },
    }),
  );
  const args = [ENVOY, ...envoyArguments(file)];
  return startServer(environment.serverCore, args, port, join(folder, 'output.log'));
}

export async function startTraefikProxy(environment: BenchEnvironment, upstream: number): Promise<BenchServer> {
  const port = await freePort();
  const folder = createFolder(environment, 'traefik');
  const rules = join(folder, 'rules.yaml');
  writeFileSync(
    rules,
    stringify({
      tls: {
        certificates: [
          { certFile: `${environment.folder}/server.pem`, keyFile: `${environment.folder}/server-key.pem` },
        ],
      },
      http: {
        routers: { api: { rule: 'PathPrefix(`/`)', service: 'api', tls: {} } },
        services: { api: { loadBalancer: { servers: [{ url: `http://127.0.0.1:${upstream}` }] } } },
      },
    }),
  );
  const file = join(folder, 'traefik.yaml');
  writeFileSync(
    file,
    stringify({
      global: { checkNewVersion: false, sendAnonymousUsage: false },
      entryPoints: { front: { address: `127.0.0.1:${port}` } },
      providers: { file: { filename: rules } },
    }),
  );
  const args = [getPythonProgram('traefik'), '--configFile', file];
  return startServer(environment.serverCore, args, port, join(folder, 'output.log'));
}

export async function startCaddyProxy(environment: BenchEnvironment, upstream: number): Promise<BenchServer> {
  const port = await freePort();
  const folder = createFolder(environment, 'caddy');
  const file = join(folder, 'Caddyfile');
  writeFileSync(
    file,
    `{
	admin off
	auto_https off
}
https://:${port} {
	bind 127.0.0.1
	tls ${environment.folder}/server.pem ${environment.folder}/server-key.pem
	reverse_proxy 127.0.0.1:${upstream}
}
`,
  );
  const args = ['caddy', 'run', '--adapter', 'caddyfile', '--config', file];
  return startServer(environment.serverCore, args, port, join(folder, 'output.log'));
}
