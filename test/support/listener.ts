import type { Reply } from '../../src/http/reply.ts';
import type { CompletedRequest, RequestContext, RequestOutcome } from '../../src/http/request-context.ts';
import type { PeerList } from '../../src/listener/client-address.ts';
import { openPublicListener, type PublicListener, type PublicListenerOptions } from '../../src/listener/listener.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { ClientRequest, type RequestEnvironment } from '../../src/proxy/client-request.ts';
import type { RequestConfig } from '../../src/proxy/config.ts';

const NO_PEERS = { hasEntries: false, includes: () => false };

export interface TestListenerOptions extends Partial<Omit<PublicListenerOptions, 'createHandler'>> {
  readonly trustedProxies?: PeerList;
  /** Serves all requests. */
  readonly onRequest: (context: RequestContext) => Reply | Promise<Reply>;
  readonly onRequestStart?: () => void;
  readonly onRequestEnd?: (request: CompletedRequest, outcome: RequestOutcome) => void;
}

/** Opens only the gateway's public listener, on a free port. */
export function startTestListener(options: TestListenerOptions): Promise<PublicListener> {
  const { onRequest, trustedProxies = NO_PEERS, onRequestStart, onRequestEnd, ...rest } = options;
  const log = createLogger({ level: 'error', format: 'json', write() {} });
  const now = (): number => Date.now() / 1_000;
  const config = {
    trustedProxies,
    isTrustedPeer: (peer: string) => trustedProxies.includes(peer),
    policy: {},
    isServiceTarget: () => true,
    isForwardAuth: () => false,
    serve: onRequest,
    retain() {},
    release() {},
  } as unknown as RequestConfig;
  const environment: RequestEnvironment = {
    maxTargetLength: 8_192,
    getConfig: () => config,
    onRequestStart: onRequestStart ?? (() => {}),
    onRequestEnd: onRequestEnd ?? (() => {}),
    log: options.log ?? log,
    now: options.now ?? now,
  };
  return openPublicListener({
    host: '127.0.0.1',
    port: 0,
    limits: { headers: 16_384, headerTimeout: 10, connections: 100 },
    proxyProtocol: NO_PEERS,
    log,
    now,
    createHandler: (connection, downstream) => new ClientRequest(environment, connection, downstream),
    ...rest,
  });
}
