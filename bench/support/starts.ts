import { startBenchGateway } from './gateway.ts';
import { openConnections } from './idle-connections.ts';
import { cpuSeconds } from './linux.ts';
import { median } from './report.ts';

export interface StartOptions {
  /** The built programs by name. */
  readonly programs: Readonly<Record<string, string>>;
  readonly upstream: number;
  readonly rounds: number;
  readonly log: (text: string) => void;
}

/** Medians in milliseconds. */
export interface StartFigures {
  readonly ready: number;
  readonly cpu: number;
  /** A request on a new connection, TLS handshake included: the first one after start-up, and later ones. */
  readonly first: number;
  readonly later: number;
}

const LATER = 20;

/** Starts the programs in turn, each on a new folder. */
export async function measureStarts(options: StartOptions): Promise<Record<string, StartFigures>> {
  const { programs, upstream, rounds, log } = options;
  const samples = new Map<string, StartFigures[]>();
  for (let round = 0; round < rounds; round += 1)
    for (const [name, entry] of Object.entries(programs)) {
      const gateway = await startBenchGateway({ upstream, entry });
      const cpu = cpuSeconds(gateway.pids) * 1_000;
      const target = { front: gateway, tokens: gateway.folder.file('tokens') };
      const request = async (): Promise<number> => {
        const begun = performance.now();
        for (const connection of await openConnections(target, 1)) connection.close();
        return performance.now() - begun;
      };
      const first = await request();
      const later: number[] = [];
      for (let index = 0; index < LATER; index += 1) later.push(await request());
      const sample = { ready: gateway.readySeconds * 1_000, cpu, first, later: median(later) };
      log(`  round ${round + 1}/${rounds} ${name}: ${JSON.stringify(sample)}`);
      samples.set(name, [...(samples.get(name) ?? []), sample]);
      await gateway.stop();
      gateway.folder.remove();
    }
  const pick = (all: readonly StartFigures[], key: keyof StartFigures): number => median(all.map((one) => one[key]));
  return Object.fromEntries(
    [...samples].map(([name, all]) => [
      name,
      { ready: pick(all, 'ready'), cpu: pick(all, 'cpu'), first: pick(all, 'first'), later: pick(all, 'later') },
    ]),
  );
}
