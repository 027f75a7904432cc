/**
 * Throughput of one process on one Redis, in a separate process.
 *
 *   raw       one compare-and-swap script per operation, with plain ioredis and auto-pipelining
 *   pair      the same after a GET: the commands of a refresh
 *   refresh   the grant core, including signatures and audit lines
 *   unsigned  the same without the access token's signature
 *   bare      the same without the audit line
 *   signing   the signatures alone
 *
 *   node redis-core.ts <folder> <mode> <concurrency> <seconds> <state file> <result file>
 */
import { hash } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { Redis } from 'ioredis';
import type { GrantDeps } from '../../src/grants/deps.ts';
import { refresh } from '../../src/grants/refresh.ts';
import { createLogger, createStdoutSink } from '../../src/observability/logger.ts';
import { openCheckedKeyring } from '../../src/server/keys.ts';
import { createRefreshToken } from '../../src/tokens/issuer.ts';
import { loadSettingsIn, openGrantDeps } from './grant-deps.ts';

const [folder = '', mode = '', concurrencyText = '', secondsText = '', stateFile = '', resultFile = ''] =
  process.argv.slice(2);
const concurrency = Number(concurrencyText);

type Operation = (index: number) => Promise<void>;
interface Workload {
  readonly operate: Operation;
  readonly count: number;
  close(): Promise<void>;
}

const CAS = `
local found = redis.call('GET', KEYS[1])
if not found or string.match(found, '^(%S+)') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2] .. ' ' .. ARGV[3], 'PX', '3600000')
return 1`;
/** As long as a stored grant. */
const RECORD = 'x'.repeat(440);

async function raw(readFirst: boolean): Promise<Workload> {
  const redis = new Redis(loadSettingsIn(folder).store.url ?? '', { enableAutoPipelining: true });
  const sha = hash('sha1', CAS);
  const versions = Array.from({ length: concurrency }, () => 0);
  await redis.script('LOAD', CAS);
  await Promise.all(versions.map((_, index) => redis.set(`raw:{${index}}`, `0 ${RECORD}`)));
  return {
    count: concurrency,
    async operate(index) {
      const version = versions[index] ?? 0;
      if (readFirst) await redis.get(`raw:{${index}}`);
      const done = await redis.evalsha(sha, 1, `raw:{${index}}`, version, version + 1, RECORD);
      if (done !== 1) throw new Error('the compare-and-swap failed although there is no other writer');
      versions[index] = version + 1;
    },
    close: async () => redis.disconnect(),
  };
}

async function core({ signed, audited }: { signed: boolean; audited: boolean }): Promise<Workload> {
  const sink = createStdoutSink();
  const logger = createLogger({ level: 'info', format: 'json', write: sink.write });
  const log = audited ? logger : { ...logger, audit: () => {} };
  const { deps: allDeps, store } = await openGrantDeps(folder, log);
  const tokens = JSON.parse(readFileSync(stateFile, 'utf8')) as string[];
  const deps = signed ? allDeps : await withoutSignatures(allDeps);
  return {
    count: tokens.length,
    async operate(index) {
      const done = await refresh(deps, {
        clientId: 'report-runner',
        refreshToken: tokens[index] ?? '',
        arrivedAt: deps.now(),
      });
      if (!done.ok) throw new Error(`rejected: ${done.refusal.reason}`);
      tokens[index] = done.value.pair.refreshToken;
    },
    async close() {
      writeFileSync(stateFile, JSON.stringify(tokens));
      sink.flush();
      await store.close();
    },
  };
}

async function withoutSignatures(deps: GrantDeps): Promise<GrantDeps> {
  const keyring = await openCheckedKeyring(loadSettingsIn(folder), deps.store as never, deps.now());
  return {
    ...deps,
    tokenIssuer: {
      ...deps.tokenIssuer,
      issueTokens({ id, generation, keys }) {
        const key = keyring.getSealingKey(keys.sealing);
        if (key === undefined) throw new Error('no sealing key');
        return { accessToken: '', refreshToken: createRefreshToken(key, id, generation) };
      },
    },
  };
}

async function signing(): Promise<Workload> {
  const { deps, store } = await openGrantDeps(
    folder,
    createLogger({ level: 'error', format: 'json', write: () => {} }),
  );
  const [token = ''] = JSON.parse(readFileSync(stateFile, 'utf8')) as string[];
  const found = await store.grants.read(deps.tokenIssuer.openRefreshToken(token, deps.now())?.grantId ?? '');
  if (found === undefined) throw new Error('no grant');
  return {
    count: concurrency,
    async operate() {
      deps.tokenIssuer.issueTokens(found.record, deps.now());
      // Without this, timers would never fire.
      await new Promise(setImmediate);
    },
    close: () => store.close(),
  };
}

const KINDS: Readonly<Record<string, () => Promise<Workload>>> = {
  raw: () => raw(false),
  pair: () => raw(true),
  refresh: () => core({ signed: true, audited: true }),
  unsigned: () => core({ signed: false, audited: true }),
  bare: () => core({ signed: false, audited: false }),
  signing,
};
const createWorkload = KINDS[mode];
if (createWorkload === undefined) throw new Error(`no such mode: ${mode}`);
const work = await createWorkload();
let count = 0;
/** Until then, V8 is compiling. */
const WARM_UP_OPERATIONS = 20_000;
const MAX_WARM_UP_MS = 60_000;
let stop = Number.POSITIVE_INFINITY;
const runWorker = async (first: number): Promise<void> => {
  for (let index = first; performance.now() < stop; index += concurrency) {
    if (index >= work.count) index = first;
    await work.operate(index);
    count += 1;
  }
};
const running = Promise.all(Array.from({ length: concurrency }, (_, index) => runWorker(index)));
const warmUntil = performance.now() + MAX_WARM_UP_MS;
const isWarm = (): boolean => count >= WARM_UP_OPERATIONS || performance.now() >= warmUntil;
while (!isWarm()) await new Promise((resolve) => setTimeout(resolve, 20));
stop = performance.now() + Number(secondsText) * 1_000;
const [from, at, cpu] = [count, performance.now(), process.cpuUsage()];
await running;
const seconds = (performance.now() - at) / 1_000;
const { user, system } = process.cpuUsage(cpu);
const done = count - from;
writeFileSync(resultFile, JSON.stringify({ perSecond: done / seconds, cpuMicros: (user + system) / done, count }));
await work.close();
