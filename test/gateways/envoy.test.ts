import { describe } from 'vitest';
import { parse, stringify } from 'yaml';
import { needs } from '../set-up/programs.ts';
import type { FrontProxyProgram } from '../support/front-proxy.ts';
import type { TestGateway } from '../support/test-gateway.ts';
import { fillPlaceholders, readDocumentedConfig } from './documented-configuration.ts';
import { testForwardAuth } from './forward-auth.ts';
import { testClientCertificates } from './forwarded-certificates.ts';
import { ENVOY, envoyArguments, startEnvoy } from './proxies.ts';

needs('envoy');

describe('Envoy', () => {
  testForwardAuth({ start: startEnvoy, whenUnreachable: 503, forwardsHost: false });
});

const withCertificates = (port: number, gateway: TestGateway): Omit<FrontProxyProgram, 'port'> => ({
  program: ENVOY,
  arguments: (_folder, write) => {
    const read = (name: string, replacements: Readonly<Record<string, string>>) =>
      parse(fillPlaceholders(readDocumentedConfig(name), replacements));
    const configuration = read('yaml envoy', {
      'port_value: 8443': `port_value: ${gateway.port}`,
      'port_value: 8080': `port_value: ${port}`,
      'api.example.test': '"*"',
      'gate.example.test': 'localhost',
      '/etc/gatehouse/ca.pem': `${gateway.folder}/ca.pem`,
    });
    const [chain] = configuration.static_resources.listeners[0].filter_chains;
    const manager = chain.filters[0].typed_config;
    // Every request is forwarded to gatehouse, without a check.
    manager.http_filters = manager.http_filters.slice(-1);
    manager.route_config.request_headers_to_remove = [];
    manager.route_config.virtual_hosts[0].routes[0].route.cluster = 'gatehouse';
    delete manager.early_header_mutation_extensions;
    Object.assign(manager, read('yaml envoy-client-certificates', {}));
    Object.assign(
      chain,
      read('yaml envoy-client-certificates-tls', {
        '/etc/envoy/tls': `${gateway.folder}/front`,
        '/etc/gatehouse/issuers.pem': `${gateway.folder}/ca.pem`,
      }),
    );
    return envoyArguments(write('envoy.yaml', stringify(configuration)));
  },
});

describe('Envoy that terminates TLS', () => {
  testClientCertificates({ forwardedHeader: 'x-forwarded-client-cert', program: withCertificates });
});
