/**
 * The grant core in a separate process: no HTTP, but the real store with flushed writes, signatures, certificate validation
 * and audit lines (on standard output, which the caller redirects to a file).
 *
 *   node grant-core.ts <folder> refresh|certificate <concurrency> <warm-up seconds> <seconds> <state file> <result file>
 */
import { X509Certificate } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { grantByCertificate } from '../../src/grants/credential-grants.ts';
import { refresh } from '../../src/grants/refresh.ts';
import { createLogger, createStdoutSink } from '../../src/observability/logger.ts';
import { openGrantDeps } from './grant-deps.ts';

const [
  folder = '',
  operation = '',
  concurrencyText = '',
  warmText = '',
  secondsText = '',
  stateFile = '',
  resultFile = '',
] = process.argv.slice(2);
const concurrency = Number(concurrencyText);
const sink = createStdoutSink();
const { deps, store } = await openGrantDeps(folder, createLogger({ level: 'info', format: 'json', write: sink.write }));
const tokens = JSON.parse(readFileSync(stateFile, 'utf8')) as string[];
const certificate = new X509Certificate(readFileSync(join(folder, 'alice.pem'))).raw;

const refreshGrant = async (index: number): Promise<void> => {
  const done = await refresh(deps, {
    clientId: 'report-runner',
    refreshToken: tokens[index] ?? '',
    arrivedAt: deps.now(),
  });
  if (!done.ok) throw new Error(`rejected: ${done.refusal.reason}`);
  tokens[index] = done.value.pair.refreshToken;
};
const requestCertificateGrant = async (): Promise<void> => {
  const done = await grantByCertificate(deps, {
    clientId: 'report-runner',
    scope: 'files:read',
    certificate,
  });
  if (!done.ok) throw new Error(`rejected: ${done.refusal.reason}`);
};
const operate = operation === 'refresh' ? refreshGrant : requestCertificateGrant;

let count = 0;
const end = performance.now() + (Number(warmText) + Number(secondsText)) * 1_000;
const runWorker = async (first: number): Promise<void> => {
  for (let index = first; performance.now() < end; index += concurrency) {
    if (index >= tokens.length) index = first;
    await operate(index);
    count += 1;
  }
};
const running = Promise.all(Array.from({ length: concurrency }, (_, index) => runWorker(index)));
await new Promise((resolve) => setTimeout(resolve, Number(warmText) * 1_000));
const [from, at, cpu] = [count, performance.now(), process.cpuUsage()];
await running;
const seconds = (performance.now() - at) / 1_000;
const { user, system } = process.cpuUsage(cpu);
const completed = count - from;
writeFileSync(stateFile, JSON.stringify(tokens));
writeFileSync(
  resultFile,
  JSON.stringify({
    perSecond: completed / seconds,
    cpuMicros: (user + system) / completed,
    count: completed,
  }),
);
sink.flush();
await store.close();
