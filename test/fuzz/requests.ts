import { mkdirSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { type Batch, makeBatch, seedIn } from './grammar.ts';
import { type FuzzTarget, startTarget } from './target.ts';
import { type ParserOptions, startThirdPartyParsers } from './third-party-parsers.ts';

/**
 * Row H29: a seeded storm of broken requests. `npm run fuzz` sends a million; `npm run fuzz -- --count 5000 --seed 7`
 * sends others. What fails is written to a file, made smaller, and named with its seed.
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
/** How long a failure is made smaller. */
const SHRINK_MS = 60_000;

/** Throws at the first round in which something went wrong. */
export async function fuzz({ count, seed, tls, log = () => {}, go }: FuzzOptions): Promise<FuzzResult> {
  const parsers = await startThirdPartyParsers({ go });
  const target = await startTarget({ tls, parsers });
  const total = { sent: 0, read: 0, forwarded: 0 };
  const begun = performance.now();
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
      const seconds = (performance.now() - begun) / 1_000;
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

/** Finds a single batch that fails, makes it smaller, saves it, and tells where. */
async function report(
  target: FuzzTarget,
  batches: readonly Batch[],
  wrongs: readonly string[],
  seed: number,
): Promise<string> {
  const summary = `seed ${seed}: ${wrongs.length} wrong, such as\n  ${wrongs.slice(0, 5).join('\n  ')}`;
  const named = new Set(
    [...wrongs.join('\n').matchAll(/\(([^)]+)\)/g)].map(([, found = '']) => seedIn(found)),
  );
  const suspects = batches.filter((batch) => named.has(batch.seed));
  for (const suspect of suspects.length > 0 ? suspects : batches) {
    const alone = await target.runRound([suspect]);
    if (alone.problems.length === 0) continue;
    const small = await shrink(target, suspect);
    const folder = join(tmpdir(), 'gatehouse-fuzz');
    const file = join(folder, `${small.seed}.bin`);
    mkdirSync(folder, { recursive: true });
    writeFileSync(file, Buffer.concat(small.messages));
    return `${summary}\nbatch ${small.seed}, made smaller, is in ${file}:\n${small.messages.map((one) => JSON.stringify(one.toString('latin1').replaceAll(target.token, 'TOKEN'))).join('\n')}`;
  }
  return `${summary}\nno batch alone does it`;
}

/** Leaves out messages, then ever smaller runs of bytes, as long as it still goes wrong. */
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
  for (let which = 0; which < best.messages.length; which += 1)
    for (let size = (best.messages[which]?.length ?? 0) >> 1; size > 0; size >>= 1)
      for (let from = 0; from < (best.messages[which]?.length ?? 0); ) {
        const message = best.messages[which] ?? Buffer.alloc(0);
        const less = Buffer.concat([message.subarray(0, from), message.subarray(from + size)]);
        if (!(await fails(best.messages.with(which, less)))) from += size;
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
  await fuzz({ count: Number(values.count), seed, tls: values.tls, log: print, go: true });
}
