/**
 * The grant core by itself, in a process of its own: no HTTP, the real store with flushed writes, signatures,
 * certificate judgement and audit lines (to standard output, which the caller sends to a file).
 *
 *   node core.ts <folder> refresh|certificate <lanes> <warm-up seconds> <seconds> <state file> <result file>
 */
import { X509Certificate } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { grantByCertificate } from '../../src/grants/certificate-grant.ts';
import { refresh } from '../../src/grants/refresh.ts';
import { createLogger, stdoutSink } from '../../src/observability/logger.ts';
import { openDesk } from './desk.ts';

const [
  folder = '',
  operation = '',
  lanesText = '',
  warmText = '',
  secondsText = '',
  stateFile = '',
  resultFile = '',
] = process.argv.slice(2);
const lanes = Number(lanesText);
const sink = stdoutSink();
const { desk, store } = await openDesk(
  folder,
  createLogger({ level: 'info', format: 'json', write: sink.write }),
);
const tokens = JSON.parse(readFileSync(stateFile, 'utf8')) as string[];
const certificate = new X509Certificate(readFileSync(join(folder, 'alice.pem'))).raw;

const refreshOne = async (index: number): Promise<void> => {
  const done = await refresh(desk, {
    clientId: 'report-runner',
    refreshToken: tokens[index] ?? '',
    arrivedAt: desk.now(),
  });
  if (!done.ok) throw new Error(`refused: ${done.refusal.reason}`);
  tokens[index] = done.value.pair.refreshToken;
};
const certificateOne = async (): Promise<void> => {
  const done = await grantByCertificate(desk, {
    clientId: 'report-runner',
    scope: 'files:read',
    certificate,
  });
  if (!done.ok) throw new Error(`refused: ${done.refusal.reason}`);
};
const one = operation === 'refresh' ? refreshOne : certificateOne;

let count = 0;
const end = performance.now() + (Number(warmText) + Number(secondsText)) * 1_000;
const lane = async (first: number): Promise<void> => {
  for (let index = first; performance.now() < end; index += lanes) {
    if (index >= tokens.length) index = first;
    await one(index);
    count += 1;
  }
};
const running = Promise.all(Array.from({ length: lanes }, (_, index) => lane(index)));
await new Promise((resolve) => setTimeout(resolve, Number(warmText) * 1_000));
const [from, at, cpu] = [count, performance.now(), process.cpuUsage()];
await running;
const seconds = (performance.now() - at) / 1_000;
const { user, system } = process.cpuUsage(cpu);
const done = count - from;
writeFileSync(stateFile, JSON.stringify(tokens));
writeFileSync(
  resultFile,
  JSON.stringify({ perSecond: done / seconds, cpuMicros: (user + system) / done, count: done }),
);
sink.flush();
await store.close();
