import { parseArgs } from 'node:util';
import { recordFigures } from '../support/figures.ts';
import { fuzzFrames } from './http2-frames.ts';
import { fuzzHpack } from './http2-hpack.ts';
import { fuzzMessages } from './http2-messages.ts';
import { fuzzHttp2Responses } from './http2-responses.ts';

/**
 * Fuzzes HTTP/2: header blocks against a reference decoder, frames against a live gateway, messages against Node's HTTP/2 server
 * and HTTP/1.1, and responses of an upstream against the client side. `npm run fuzz:http2` runs all of them; `-- --only hpack --count 10000000 --seed 7` runs one
 * of them, with other inputs.
 */
const DEFAULT_COUNTS = { hpack: 200_000, frames: 50_000, messages: 10_000, responses: 50_000 } as const;

export type FuzzKind = keyof typeof DEFAULT_COUNTS;

export async function fuzzHttp2(
  kind: FuzzKind,
  count: number,
  seed: number,
  log: (line: string) => void = () => {},
): Promise<object> {
  if (kind === 'hpack') return fuzzHpack(count, seed, log);
  if (kind === 'responses') {
    const { errors, ...figures } = await fuzzHttp2Responses({ count, seed });
    if (errors.length > 0) throw new AggregateError(errors, 'an exchange did not end properly');
    return figures;
  }
  return kind === 'frames' ? fuzzFrames({ count, seed, log }) : fuzzMessages({ count, seed, log });
}

if (import.meta.main) {
  const { values } = parseArgs({
    options: {
      only: { type: 'string' },
      count: { type: 'string' },
      seed: { type: 'string', default: String(Math.trunc(Math.random() * 1_000_000)) },
    },
  });
  const print = (line: string): void => void process.stdout.write(`${line}\n`);
  print(`seed ${values.seed}`);
  const kinds = (Object.keys(DEFAULT_COUNTS) as FuzzKind[]).filter(
    (kind) => values.only === undefined || values.only === kind,
  );
  if (kinds.length === 0) throw new Error(`expected --only hpack, frames, messages or responses; got ${values.only}`);
  for (const kind of kinds) {
    const result = await fuzzHttp2(kind, Number(values.count ?? DEFAULT_COUNTS[kind]), Number(values.seed), print);
    print(`${kind}: ${JSON.stringify(result)}`);
    recordFigures(`http2-${kind}`, { seed: Number(values.seed), ...result, faults: 0 });
  }
}
