import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { parse, stringify } from 'yaml';
import { getPythonProgram } from '../set-up/programs.ts';
import { type FrontProxy, nginxArguments, startFrontProxy } from '../support/front-proxy.ts';
import { rawRequest } from '../support/raw-client.ts';
import { until } from '../support/until.ts';
import { fillPlaceholders, luaScript, readDocumentedConfig } from './documented-configuration.ts';

/** Ports and files for the configuration of a proxy. */
export interface Addresses {
  readonly port: number;
  readonly gatehousePort: number;
  readonly apiPort: number;
  readonly ca: string;
}

/** Each starts the real proxy with the configuration of docs/forward-auth.md. */
export const startNginx = ({ port, gatehousePort, apiPort, ca }: Addresses): Promise<FrontProxy> =>
  startFrontProxy({
    program: 'nginx',
    port,
    arguments: (folder, write) => {
      write(
        'gatehouse.conf',
        fillPlaceholders(readDocumentedConfig('nginx'), {
          '127.0.0.1:8443': `127.0.0.1:${gatehousePort}`,
          '127.0.0.1:9000': `127.0.0.1:${apiPort}`,
          '127.0.0.1:8080': `127.0.0.1:${port}`,
          'gate.example.test': 'localhost',
          '/etc/gatehouse/ca.pem': ca,
        }),
      );
      return nginxArguments(folder, write, ['  access_log off;', `  include ${folder}/gatehouse.conf;`]);
    },
  });

export const startCaddy = ({ port, gatehousePort, apiPort, ca }: Addresses): Promise<FrontProxy> =>
  startFrontProxy({
    program: 'caddy',
    port,
    arguments: (_, write) => [
      'run',
      '--adapter',
      'caddyfile',
      '--config',
      write(
        'Caddyfile',
        // Caddy's admin API would listen on a fixed port.
        `{\n\tadmin off\n}\n${fillPlaceholders(readDocumentedConfig('caddyfile'), {
          '127.0.0.1:8443': `127.0.0.1:${gatehousePort}`,
          '127.0.0.1:9000': `127.0.0.1:${apiPort}`,
          ':8080': `:${port}`,
          'gate.example.test': 'localhost',
          '/etc/gatehouse/ca.pem': ca,
        })}`,
      ),
    ],
  });

export const startHaproxy = (
  { port, gatehousePort, apiPort, ca }: Addresses,
  script = readFileSync(luaScript, 'utf8'),
): Promise<FrontProxy> =>
  startFrontProxy({
    program: 'haproxy',
    port,
    arguments: (_, write) => {
      const configuration = fillPlaceholders(readDocumentedConfig('haproxy'), {
        '127.0.0.1:8443': `127.0.0.1:${gatehousePort}`,
        '127.0.0.1:9000': `127.0.0.1:${apiPort}`,
        '127.0.0.1:8080': `127.0.0.1:${port}`,
        'gate.example.test': 'localhost',
        '/etc/gatehouse/ca.pem': ca,
        // All HAProxies of the machine share these names.
        'abns@gatehouse': `abns@gatehouse-${port}`,
        '/etc/haproxy/gatehouse-check.lua': write('gatehouse-check.lua', script),
      });
      return ['-db', '-f', write('haproxy.cfg', configuration)];
    },
  });

export async function startTraefik({ port, gatehousePort, apiPort, ca }: Addresses): Promise<FrontProxy> {
  const proxy = await startFrontProxy({
    program: getPythonProgram('traefik'),
    port,
    arguments: (_, write) => {
      const dynamic = fillPlaceholders(readDocumentedConfig('yaml traefik'), {
        'gate.example.test:8443': `localhost:${gatehousePort}`,
        '127.0.0.1:9000': `127.0.0.1:${apiPort}`,
        '/etc/gatehouse/ca.pem': ca,
      });
      const main = fillPlaceholders(readDocumentedConfig('yaml traefik-static'), {
        '127.0.0.1:8080': `127.0.0.1:${port}`,
        '/etc/traefik/gatehouse.yaml': write('gatehouse.yaml', dynamic),
      });
      return ['--configFile', write('traefik.yaml', main)];
    },
  });
  // It listens before it has loaded the dynamic configuration. gatehouse refuses this path.
  const probe = 'GET /%00 HTTP/1.1\r\nHost: api.example.test\r\n\r\n';
  await until('Traefik knows the route', async () => (await rawRequest(port, probe)).status !== 404);
  return proxy;
}

/** The program that runs Envoy: its package starts it with Python. */
export const ENVOY = join(dirname(getPythonProgram('envoy')), 'python');
export const envoyArguments = (configuration: string): readonly string[] => [
  '-m',
  'envoy._main',
  '--config-path',
  configuration,
  '--concurrency',
  '1',
  '--log-level',
  'warning',
  // Hot restart uses names that all Envoys of the machine share.
  '--disable-hot-restart',
];

/** Part of the documented configuration, parsed. */
export const readEnvoyConfig = (name: string, replacements: Readonly<Record<string, string>> = {}) =>
  parse(fillPlaceholders(readDocumentedConfig(`yaml ${name}`), replacements));

/** The documented configuration for gRPC. `change` gets the HTTP connection manager, the filter chain and the cluster of gatehouse. */
export const startEnvoy = (
  { port, gatehousePort, apiPort, ca }: Addresses,
  change: (parts: EnvoyParts) => void = () => {},
): Promise<FrontProxy> =>
  startFrontProxy({
    program: ENVOY,
    port,
    arguments: (_, write) => {
      const configuration = readEnvoyConfig('envoy', {
        'port_value: 8443': `port_value: ${gatehousePort}`,
        'port_value: 9000': `port_value: ${apiPort}`,
        'port_value: 8080': `port_value: ${port}`,
        'gate.example.test': 'localhost',
        '/etc/gatehouse/ca.pem': ca,
      });
      const [chain] = configuration.static_resources.listeners[0].filter_chains;
      const manager = chain.filters[0].typed_config;
      const [cluster] = configuration.static_resources.clusters;
      change({ chain, manager, filter: manager.http_filters[0].typed_config, cluster });
      return envoyArguments(write('envoy.yaml', stringify(configuration)));
    },
  });

type Parsed = ReturnType<typeof parse>;

interface EnvoyParts {
  readonly chain: Parsed;
  readonly manager: Parsed;
  /** The configuration of `ext_authz`. */
  readonly filter: Parsed;
  readonly cluster: Parsed;
}

export const startEnvoyOverHttp = (addresses: Addresses): Promise<FrontProxy> =>
  startEnvoy(addresses, ({ manager, filter, cluster }) => {
    for (const name of ['transport_api_version', 'encode_raw_headers', 'grpc_service']) delete filter[name];
    Object.assign(
      filter,
      readEnvoyConfig('envoy-http', { 'gate.example.test:8443': `localhost:${addresses.gatehousePort}` }),
    );
    delete cluster['typed_extension_protocol_options'];
    delete cluster['transport_socket'].typed_config.common_tls_context.alpn_protocols;
    manager['route_config'].request_headers_to_remove = ['authorization', 'dpop'];
  });
