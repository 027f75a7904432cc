import { mkdirSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { recordFigures } from '../support/figures.ts';
import { type Batch, makeBatch, parseNonce } from './grammar.ts';
import { type FuzzTarget, startTarget } from './target.ts';
import { type ParserOptions, startThirdPartyParsers } from './third-party-parsers.ts';

/**
 * Row H29: malformed requests from a seed. `npm run fuzz` sends a million; `npm run fuzz -- --count 5000 --seed 7` sends
 * others. A failing batch is shrunk and written to a file named after its seed.
 */
export interface FuzzOptions extends ParserOptions {
  readonly count: number;
  readonly seed: number;
  readonly tls: boolean;
  readonly log?: (line: string) => void;
}

export interface FuzzResult {
  readonly sent: number;
  readonly read: number;
  readonly forwarded: number;
}

const ROUND = 2_000;
/** How long a failing batch is shrunk. */
const SHRINK_MS = 60_000;

/** Throws after the first round with a problem. */
export async function fuzz({ count, seed, tls, log = () => {}, go }: FuzzOptions): Promise<FuzzResult> {
  const parsers = await startThirdPartyParsers({ go });
  const target = await startTarget({ tls, parsers });
  const total = { sent: 0, read: 0, forwarded: 0 };
  const startedAt = performance.now();
  try {
    for (let batchSeed = seed * 10_000_000; total.sent < count; ) {
      const batches: Batch[] = [];
      for (let messages = 0; messages < Math.min(ROUND, count - total.sent); batchSeed += 1) {
        const batch = makeBatch(batchSeed, target.token);
        batches.push(batch);
        messages += batch.messages.length;
      }
      const { problems, read, forwarded } = await target.runRound(batches);
      if (problems.length > 0) throw new Error(await report(target, batches, problems, seed));
      total.sent += batches.reduce((sum, { messages }) => sum + messages.length, 0);
      total.read += read;
      total.forwarded += forwarded;
      const seconds = (performance.now() - startedAt) / 1_000;
      const megabytes = Math.round(process.memoryUsage().rss / 1_048_576);
      log(
        `${total.sent} sent, ${total.read} read as requests, ${total.forwarded} forwarded, ${seconds.toFixed(0)} s, ${megabytes} MB`,
      );
    }
    return total;
  } finally {
    await target.close();
    for (const parser of parsers) await parser.close();
  }
}

/** Finds a single failing batch, shrinks it, saves it, and returns a message with its file. */
async function report(
  target: FuzzTarget,
  batches: readonly Batch[],
  problems: readonly string[],
  seed: number,
): Promise<string> {
  const summary = `seed ${seed}: ${problems.length} problems, such as\n  ${problems.slice(0, 5).join('\n  ')}`;
  const named = new Set([...problems.join('\n').matchAll(/\(([^)]+)\)/g)].map(([, found = '']) => parseNonce(found)));
  const suspects = batches.filter((batch) => named.has(batch.seed));
  for (const suspect of suspects.length > 0 ? suspects : batches) {
    const alone = await target.runRound([suspect]);
    if (alone.problems.length === 0) continue;
    const small = await shrink(target, suspect);
    const folder = join(tmpdir(), 'gatehouse-fuzz');
    const file = join(folder, `${small.seed}.bin`);
    mkdirSync(folder, { recursive: true });
    writeFileSync(file, Buffer.concat(small.messages));
    return `${summary}\nbatch ${small.seed}, shrunk, is in ${file}:\n${small.messages.map((message) => JSON.stringify(message.toString('latin1').replaceAll(target.token, 'TOKEN'))).join('\n')}`;
  }
  return `${summary}\nno single batch reproduces it`;
}

/** Removes messages, then ever smaller runs of bytes, as long as the batch still fails. */
async function shrink(target: FuzzTarget, failing: Batch): Promise<Batch> {
  let best = failing;
  const end = performance.now() + SHRINK_MS;
  const fails = async (messages: readonly Buffer[]): Promise<boolean> => {
    const batch = { ...best, messages };
    if (performance.now() > end || (await target.runRound([batch])).problems.length === 0) return false;
    best = batch;
    return true;
  };
  for (let at = 0; at < best.messages.length && best.messages.length > 1; )
    if (!(await fails(best.messages.toSpliced(at, 1)))) at += 1;
  for (let index = 0; index < best.messages.length; index += 1)
    for (let size = (best.messages[index]?.length ?? 0) >> 1; size > 0; size >>= 1)
      for (let from = 0; from < (best.messages[index]?.length ?? 0); ) {
        const message = best.messages[index] ?? Buffer.alloc(0);
        const shorter = Buffer.concat([message.subarray(0, from), message.subarray(from + size)]);
        if (!(await fails(best.messages.with(index, shorter)))) from += size;
      }
  return best;
}

if (import.meta.main) {
  const { values } = parseArgs({
    options: {
      count: { type: 'string', default: '1000000' },
      seed: { type: 'string', default: String(Math.trunc(Math.random() * 1_000_000)) },
      tls: { type: 'boolean', default: false },
    },
  });
  const seed = Number(values.seed);
  const print = (line: string): void => void process.stdout.write(`${line}\n`);
  print(`seed ${seed}`);
  const { sent, read, forwarded } = await fuzz({
    count: Number(values.count),
    seed,
    tls: values.tls,
    log: print,
    go: true,
  });
  recordFigures('malformed-requests', {
    seed,
    sent,
    'read as requests': read,
    'forwarded because they were valid and authorized': forwarded,
    'wrong decisions, crashes or stalls': 0,
  });
}
