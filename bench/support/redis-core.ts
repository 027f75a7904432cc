/**
 * What one process gets out of one Redis, in a process of its own.
 *
 *   raw       one compare-and-swap script for each operation, by bare ioredis with auto-pipelining
 *   pair      the same, each after a GET: what a refresh asks of Redis
 *   refresh   the grant core, signatures and audit lines included
 *   unsigned  the same without the access token's signature
 *   bare      the same without the audit line too
 *   signing   the signatures alone
 *
 *   node redis-core.ts <folder> <mode> <lanes> <seconds> <state file> <result file>
 */
import { hash } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { Redis } from 'ioredis';
import { openKeys } from '../../src/gateway/keys.ts';
import type { GrantDesk } from '../../src/grants/desk.ts';
import { refresh } from '../../src/grants/refresh.ts';
import { createLogger, stdoutSink } from '../../src/observability/logger.ts';
import { sealRefreshToken } from '../../src/tokens/refresh-token.ts';
import { openDesk, settingsOf } from './desk.ts';

const [folder = '', mode = '', lanesText = '', secondsText = '', stateFile = '', resultFile = ''] =
  process.argv.slice(2);
const lanes = Number(lanesText);

type Turn = (index: number) => Promise<void>;
interface Work {
  readonly turn: Turn;
  readonly count: number;
  end(): Promise<void>;
}

const CAS = `
local found = redis.call('GET', KEYS[1])
if not found or string.match(found, '^(%S+)') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2] .. ' ' .. ARGV[3], 'PX', '3600000')
return 1`;
/** As long as a grant. */
const RECORD = 'x'.repeat(440);

async function raw(readFirst: boolean): Promise<Work> {
  const redis = new Redis(settingsOf(folder).store.url ?? '', { enableAutoPipelining: true });
  const sha = hash('sha1', CAS);
  const versions = Array.from({ length: lanes }, () => 0);
  await redis.script('LOAD', CAS);
  await Promise.all(versions.map((_, index) => redis.set(`raw:{${index}}`, `0 ${RECORD}`)));
  return {
    count: lanes,
    async turn(index) {
      const version = versions[index] ?? 0;
      if (readFirst) await redis.get(`raw:{${index}}`);
      const done = await redis.evalsha(sha, 1, `raw:{${index}}`, version, version + 1, RECORD);
      if (done !== 1) throw new Error('lost a race with nobody');
      versions[index] = version + 1;
    },
    end: async () => redis.disconnect(),
  };
}

async function core({ signed, audited }: { signed: boolean; audited: boolean }): Promise<Work> {
  const sink = stdoutSink();
  const loud = createLogger({ level: 'info', format: 'json', write: sink.write });
  const log = audited ? loud : { ...loud, audit: () => {} };
  const { desk: whole, store } = await openDesk(folder, log);
  const tokens = JSON.parse(readFileSync(stateFile, 'utf8')) as string[];
  const desk = signed ? whole : await withoutSignatures(whole);
  return {
    count: tokens.length,
    async turn(index) {
      const done = await refresh(desk, {
        clientId: 'report-runner',
        refreshToken: tokens[index] ?? '',
        arrivedAt: desk.now(),
      });
      if (!done.ok) throw new Error(`refused: ${done.refusal.reason}`);
      tokens[index] = done.value.pair.refreshToken;
    },
    async end() {
      writeFileSync(stateFile, JSON.stringify(tokens));
      sink.flush();
      await store.close();
    },
  };
}

async function withoutSignatures(desk: GrantDesk): Promise<GrantDesk> {
  const keyring = await openKeys(settingsOf(folder), desk.store as never, desk.now());
  return {
    ...desk,
    mint: {
      ...desk.mint,
      async pair({ id, generation, keys }) {
        const key = keyring.sealing(keys.sealing);
        if (key === undefined) throw new Error('no sealing key');
        return { accessToken: '', refreshToken: sealRefreshToken(key, id, generation) };
      },
    },
  };
}

async function signing(): Promise<Work> {
  const { desk, store } = await openDesk(
    folder,
    createLogger({ level: 'error', format: 'json', write: () => {} }),
  );
  const [token = ''] = JSON.parse(readFileSync(stateFile, 'utf8')) as string[];
  const found = await store.grants.read(desk.mint.openRefresh(token, desk.now())?.grantId ?? '');
  if (found === undefined) throw new Error('no grant');
  return {
    count: lanes,
    async turn() {
      await desk.mint.pair(found.record, desk.now());
      // What never waits would not let the clock go on.
      await new Promise(setImmediate);
    },
    end: () => store.close(),
  };
}

const KINDS: Readonly<Record<string, () => Promise<Work>>> = {
  raw: () => raw(false),
  pair: () => raw(true),
  refresh: () => core({ signed: true, audited: true }),
  unsigned: () => core({ signed: false, audited: true }),
  bare: () => core({ signed: false, audited: false }),
  signing,
};
const begin = KINDS[mode];
if (begin === undefined) throw new Error(`no such mode: ${mode}`);
const work = await begin();
let count = 0;
/** Until then the compiler is at work beside what is measured. */
const WARM_UP_TURNS = 20_000;
const MOST_WARM_UP_MS = 60_000;
let stop = Number.POSITIVE_INFINITY;
const lane = async (first: number): Promise<void> => {
  for (let index = first; performance.now() < stop; index += lanes) {
    if (index >= work.count) index = first;
    await work.turn(index);
    count += 1;
  }
};
const running = Promise.all(Array.from({ length: lanes }, (_, index) => lane(index)));
const warmUntil = performance.now() + MOST_WARM_UP_MS;
const isWarm = (): boolean => count >= WARM_UP_TURNS || performance.now() >= warmUntil;
while (!isWarm()) await new Promise((resolve) => setTimeout(resolve, 20));
stop = performance.now() + Number(secondsText) * 1_000;
const [from, at, cpu] = [count, performance.now(), process.cpuUsage()];
await running;
const seconds = (performance.now() - at) / 1_000;
const { user, system } = process.cpuUsage(cpu);
const done = count - from;
writeFileSync(
  resultFile,
  JSON.stringify({ perSecond: done / seconds, cpuMicros: (user + system) / done, count }),
);
await work.end();
