/** What gatehouse promises when something fails, and the command that tests it. docs/reliability.md is generated from this. */
export interface ReliabilityRow {
  readonly id: string;
  readonly promise: string;
  readonly test: string;
  /** Run from the root of the repository. */
  readonly command: readonly string[];
  readonly env?: Readonly<Record<string, string>>;
  /** Smaller counts, for `npm run reliability -- --quick`. */
  readonly quickArgs?: readonly string[];
  readonly notPromised?: string;
}

const FULL = ['npm', 'run', 'test:full', '--'] as const;
const SHORT = ['npm', 'test', '--'] as const;
/** Needs root and Go. */
const CLUSTER = ['npm', 'run', 'test:cluster', '--', 'test/cluster/termination.cluster.ts'] as const;

export const RELIABILITY_ROWS: readonly ReliabilityRow[] = [
  {
    id: 'malformed-requests',
    promise: 'A malformed request is rejected, or forwarded exactly as other parsers read it',
    test: '1,000,000 malformed requests, compared with the parsers of Node, Python and Go',
    command: ['npm', 'run', 'fuzz', '--', '--count', '1000000'],
    quickArgs: ['npm', 'run', 'fuzz', '--', '--count', '20000'],
  },
  {
    id: 'paths',
    promise: 'A request that is forwarded is the one that other parsers read from the same bytes',
    test: '1,000,000 messages, also parsed by Node; third-party servers parse what was forwarded',
    command: ['npm', 'run', 'fuzz:paths', '--', '--count', '1000000'],
    quickArgs: ['npm', 'run', 'fuzz:paths', '--', '--count', '20000'],
  },
  {
    id: 'http2-frames',
    promise: 'No sequence of HTTP/2 frames ends the process, keeps a stream or confuses another connection',
    test: '1,000,000 frames, valid and malformed, to a running gateway',
    command: ['npm', 'run', 'fuzz:http2', '--', '--only', 'frames', '--count', '1000000'],
    quickArgs: ['npm', 'run', 'fuzz:http2', '--', '--only', 'frames', '--count', '20000'],
  },
  {
    id: 'http2-responses',
    promise: 'No sequence of HTTP/2 frames of an upstream ends the process, or leaves an exchange without an end',
    test: '1,000,000 frames, valid and malformed, in responses to the client side',
    command: ['npm', 'run', 'fuzz:http2', '--', '--only', 'responses', '--count', '1000000'],
    quickArgs: ['npm', 'run', 'fuzz:http2', '--', '--only', 'responses', '--count', '20000'],
  },
  {
    id: 'broken-responses',
    promise: 'No response of an API, issuer, identity provider, CRL server, directory or Redis ends the process',
    test: '500 requests of each kind while all these send damaged responses; a heap of 96 MB, and other clients are served meanwhile',
    command: ['npm', 'run', 'fuzz:responses', '--', '--count', '500'],
    quickArgs: ['npm', 'run', 'fuzz:responses', '--', '--count', '100'],
    notPromised: 'While a dependency sends such responses, requests that need it get a temporary error.',
  },
  {
    id: 'client-shares',
    promise: 'Clients without a token, in one network, can neither exhaust the memory nor keep other networks out',
    test: '400 connections of one /24 with unread responses, unfinished requests, kept connections and floods, each and all at once, in the default container of a sidecar (256 MiB)',
    command: [...FULL, 'test/attack/client-shares.full.test.ts'],
    env: { SHARE_SECONDS: '20' },
    notPromised:
      'A flood of page requests of thousands per second alone can make the process grow by more than 64 MiB. New connections wait while a flood of connections is accepted.',
  },
  {
    id: 'kills-embedded',
    promise: 'What was acknowledged survives `kill -9`, embedded store',
    test: '200 kills while 24 clients refresh; at each kill one response to a stored refresh is lost',
    command: [...FULL, 'test/chaos/kill-nine.full.test.ts'],
    env: { KILLS: '200' },
    notPromised:
      'Requests in flight at the kill fail. After a power failure, this also depends on a disk that really flushes.',
  },
  {
    id: 'kills-redis',
    promise: 'What was acknowledged survives `kill -9` of a replica, Redis',
    test: '200 kills of one of three replicas during a refresh, 18 clients',
    command: [...FULL, 'test/chaos/kill-nine-redis.full.test.ts'],
    env: { REDIS_KILLS: '200' },
    notPromised:
      'New connections to the killed replica fail until the load balancer or the EndpointSlice stops selecting it.',
  },
  {
    id: 'concurrent-refreshes',
    promise: 'Concurrent refreshes of one token get the same tokens: one rotation',
    test: '1,000 grants × 100 concurrent refreshes over 3 replicas',
    command: [...FULL, 'test/chaos/three-replicas.full.test.ts', '-t', 'R05'],
    env: { GRANTS: '1000' },
  },
  {
    id: 'revocations',
    promise: 'After the 200 of a revocation, no replica accepts the token',
    test: '10,000 revocations over 5 replicas, each of which is called with the token continuously',
    command: [...FULL, 'test/chaos/three-replicas.full.test.ts', '-t', 'V06'],
    env: { REPLICAS: '5', REVOCATIONS: '10000' },
    notPromised:
      'With `ack: reachable`, a replica that cannot reach Redis accepts the token until `maxStaleness` is over.',
  },
  {
    id: 'disconnected-replica',
    promise: 'A replica without Redis accepts no token after `maxStaleness`',
    test: 'one of three replicas is disconnected 10 times, with packets dropped and with connections refused',
    command: [...FULL, 'test/chaos/disconnected-replica.full.test.ts'],
    env: { CUTS: '5' },
  },
  {
    id: 'outage-short',
    promise: 'Without Redis, tokens are validated for `maxStaleness`, and everything works again when it is back',
    test: 'Redis killed for 60 s at 1,000 requests per second',
    command: [...FULL, 'test/chaos/three-replicas.full.test.ts', '-t', 'S02'],
    env: { OUTAGE: '60' },
    notPromised: 'Grants, refreshes and revocations get a temporary error until Redis is back.',
  },
  {
    id: 'outage-long',
    promise: 'A longer outage is a 503, never a 401, and needs no restart',
    test: 'Redis down for 10 minutes with `maxStaleness: 60s`',
    command: [...FULL, 'test/chaos/long-outage.full.test.ts'],
    env: { LONG_OUTAGE: '600', STALENESS: '60' },
  },
  {
    id: 'promotions',
    promise: 'With `durability: replicated`, no acknowledged write is lost when a replica of Redis is promoted',
    test: '20 partitions with promotion under load',
    command: [...FULL, 'test/chaos/promotion.full.test.ts'],
    env: { PARTITIONS: '20' },
    notPromised: 'With `durability: primary`, writes that Redis had not replicated are lost.',
  },
  {
    id: 'redis-topologies',
    promise: 'Failovers by Sentinel and reshardings of a Cluster need no restart and lose no acknowledged write',
    test: '20 Sentinel failovers, 10 of them after a kill of the primary; 5 reshardings with redis-cli; under load',
    command: [...FULL, 'test/chaos/redis-topologies.full.test.ts'],
    env: { FAILOVERS: '20', RESHARDINGS: '5' },
    notPromised: 'Writes during the change may get a temporary error.',
  },
  {
    id: 'histories',
    promise: 'Refreshes, revocations and validations are linearizable',
    test: '500 histories of about 200 operations on 3 replicas with one to three faults each',
    command: [...FULL, 'test/chaos/histories.full.test.ts'],
    env: { HISTORIES: '500' },
  },
  {
    id: 'terminations',
    promise: 'SIGTERM under load loses no request',
    test: '200 terminations with requests in flight, on kept connections and on new ones',
    command: [...FULL, 'test/deploy/termination.full.test.ts'],
    env: { TERMINATIONS: '200' },
    notPromised: 'Requests that last longer than `shutdown.drain` are aborted.',
  },
  {
    id: 'cluster-deletions',
    promise: 'On Kubernetes, a deleted pod of a gateway fails no request, loses no grant and revives no revoked token',
    test: '200 pod deletions under load: kept connections, new connections and HTTP/2, refreshes and revoked tokens',
    command: [...CLUSTER, '-t', 'pod deletions'],
    env: { CLUSTER_DELETIONS: '200' },
  },
  {
    id: 'cluster-upgrades',
    promise: 'The same for `helm upgrade`, scaling and a node drain',
    test: '100,000 requests during changes of configuration, image and keys, 1 → 5 → 2 pods, and `kubectl drain`',
    command: [...CLUSTER, '-t', 'upgrades, scaling'],
    env: { CLUSTER_REQUESTS: '100000' },
  },
  {
    id: 'cluster-sidecars',
    promise: 'The same for a rolling restart of an application with a sidecar',
    test: '5 rolling restarts under load, of each kind of sidecar',
    command: [...CLUSTER, '-t', 'a sidecar'],
    env: { CLUSTER_RESTARTS: '5' },
    notPromised:
      'If the application has no `preStop` hook, requests get 502 until clients use other pods (`cluster-sidecar-no-pre-stop`).',
  },
  {
    id: 'cluster-memory',
    promise: 'A pod that is killed at its memory limit loses no grant and revives no revoked token',
    test: '3 kills by the kernel (OOM), embedded store on a volume, with refreshes and revocations',
    command: ['npm', 'run', 'test:cluster', '--', 'test/cluster/memory-limit.cluster.ts'],
    notPromised: 'Requests in flight at the kill fail, and so do new ones until the container has restarted.',
  },
  {
    id: 'cluster-redis',
    promise: 'On Kubernetes, a failover by Sentinel and reshardings of a Cluster fail no request with a valid token',
    test: 'the pod of the primary killed; 3 reshardings; a partition of Redis; a restart of Redis without its data',
    command: [
      'npm',
      'run',
      'test:cluster',
      '--',
      'test/cluster/sentinel.cluster.ts',
      'test/cluster/redis-cluster.cluster.ts',
      'test/cluster/redis-failures.cluster.ts',
    ],
    notPromised: 'Grants, refreshes and revocations during the change may get a temporary error.',
  },
  {
    id: 'reloads',
    promise: 'Reloads, certificate renewals and key rotations fail no request; invalid ones are refused',
    test: '50 valid and 50 invalid configurations, 50 certificates, 100 key rotations under load',
    command: [...FULL, 'test/server/reload.full.test.ts'],
    env: { KEY_ROTATIONS: '100' },
  },
  {
    id: 'worker-restarts',
    promise: 'Restarting the workers fails no request',
    test: '20 restarts of all workers (SIGUSR2) under load',
    command: [...FULL, 'test/server/workers/rolling-restart.full.test.ts'],
    env: { WORKER_RESTARTS: '20' },
  },
  {
    id: 'slow-clients',
    promise: 'Slow clients do not slow others down',
    test: '2,000 clients of each of four kinds over HTTP/1.1, over HTTP/2 and with a TLS upstream, beside ordinary requests',
    command: ['npm', 'run', 'bench:slow', '--', '--clients', '2000'],
    quickArgs: ['npm', 'run', 'bench:slow', '--', '--clients', '100'],
  },
  {
    id: 'truncations',
    promise: 'A truncated response of the upstream is never passed on as complete',
    test: '1,000 responses truncated in different ways',
    command: [...FULL, 'test/attack/upstream-responses.full.test.ts', '-t', 'truncated'],
  },
  {
    id: 'aborted-requests',
    promise: 'Aborted requests leave no upstream connection open',
    test: '10,000 requests aborted at a random byte',
    command: [...FULL, 'test/attack/exhaustion-clients.full.test.ts'],
  },
  {
    id: 'leaked-secrets',
    promise: 'No token, code, password or key is in a log line or in a response that does not issue it',
    test: '10,000 tagged secrets, sent where they belong and where they do not, at log level debug',
    command: [...FULL, 'test/attack/leakage.full.test.ts'],
    env: { LEAKAGE_ROUNDS: '1250' },
  },
  {
    id: 'certificate-chains',
    promise:
      'Certificate chains that take long to verify, from one network, do not delay other networks: at most 100 ms for 99 % of their requests',
    test: '30 connections that repeat handshakes with 22 and with 3 certificates of 16,384 bits; 1,000 requests from another network',
    command: [...FULL, 'test/attack/certificate-chains.full.test.ts'],
    notPromised:
      'The first such handshakes of a network, at most four, are verified, which takes up to a quarter of a second each. A client behind a load balancer that does not send the PROXY protocol shares its network with all others.',
  },
  {
    id: 'disk',
    promise: 'A full disk is a temporary error; a damaged or altered store is never used',
    test: 'disk full, read-only file system, data file truncated anywhere or overwritten, records altered',
    command: [...SHORT, 'test/stores/embedded', 'test/stores/record-authentication.test.ts'],
  },
  {
    id: 'stalled-disk',
    promise: 'A disk that stalls is a temporary error',
    test: 'flushes that take 10 s; 50 times `kill -9` of a process that writes',
    command: [...FULL, 'test/attack/store-stalls.full.test.ts', 'test/stores/embedded/durability.full.test.ts'],
    env: { STORE_KILL_ROUNDS: '50' },
  },
  {
    id: 'clock',
    promise: 'A clock that is set back or forward revives no used token and no revoked grant',
    test: 'the clock changes by a minute up to a year during grants, refreshes, polling and sweeps',
    command: [...SHORT, 'test/attack/clock-changes.test.ts', 'test/grants/serving-time.test.ts'],
    notPromised: 'Tokens issued before the clock was set back are not valid until it catches up (`nbf`).',
  },
  {
    id: 'soak',
    promise: 'Memory and file descriptors do not grow',
    test: '2 hours with 1,000 open connections and 20 new ones per second',
    command: ['npm', 'run', 'soak', '--', '--load', 'connections', '--minutes', '120'],
    quickArgs: ['npm', 'run', 'soak', '--', '--load', 'connections', '--minutes', '2'],
  },
  {
    id: 'soak-http2',
    promise: 'The same over HTTP/2 with hostile clients',
    test: '20 minutes of requests, uploads, downloads, cancellations and attacks',
    command: ['npm', 'run', 'soak:http2', '--', '--minutes', '20'],
    quickArgs: ['npm', 'run', 'soak:http2', '--', '--minutes', '2'],
  },
];

export const formatCommand = ({ env = {}, command }: ReliabilityRow): string =>
  [
    ...Object.entries(env).map(([name, value]) => `${name}=${value}`),
    ...command.map((word) => (/[^\w./:-]/.test(word) ? `'${word}'` : word)),
  ].join(' ');
