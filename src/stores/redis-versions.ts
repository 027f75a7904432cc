/** Which software serves, and the number it bears. */
export interface RedisVersion {
  readonly server: 'Redis' | 'Valkey';
  readonly version: string;
}

/** Valkey also bears the number of the Redis it is compatible with: its own is the one that tells. */
export function redisVersion(fact: (name: string) => string | undefined): RedisVersion {
  const valkey = fact('valkey_version');
  return valkey === undefined
    ? { server: 'Redis', version: fact('redis_version') ?? '0' }
    : { server: 'Valkey', version: valkey };
}

interface Hole {
  readonly names: string;
  readonly what: string;
  /** The first release without it, of every branch that got one. */
  readonly mended: Readonly<Record<RedisVersion['server'], readonly string[]>>;
}

/**
 * As the advisories of Redis and the release notes of Valkey tell. The advisory of 5 May 2026 counts all releases
 * among those affected, the CVE record only those from 7.2: we say one too many rather than one too few.
 */
const HOLES: readonly Hole[] = [
  {
    names: 'CVE-2025-49844, CVE-2025-46817 and CVE-2025-46818',
    what: 'whoever may run scripts can take over the server',
    mended: {
      Redis: ['6.2.20', '7.2.11', '7.4.6', '8.0.4', '8.2.2'],
      Valkey: ['7.2.11', '8.0.6', '8.1.4'],
    },
  },
  {
    names: 'CVE-2026-23479',
    what: 'whoever may wait for data can take over the server',
    mended: {
      Redis: ['6.2.22', '7.2.14', '7.4.9', '8.2.6', '8.4.3', '8.6.3'],
      Valkey: ['7.2.13', '8.0.8', '8.1.7', '9.0.4'],
    },
  },
];

/**
 * One line for each known hole that a server of this number has. Never a refusal: distributions mend without
 * changing the number.
 */
export function knownHoles({ server, version }: RedisVersion): readonly string[] {
  return HOLES.filter(({ mended }) => !isMended(version, mended[server])).map(
    ({ names, what, mended }) =>
      `${server} ${version} has ${names} (${what}), unless your distribution has mended it under this number; the next release without it is ${nextOf(version, mended[server])}`,
  );
}

function isMended(version: string, mended: readonly string[]): boolean {
  const sameBranch = mended.find((one) => branchOf(one) === branchOf(version));
  if (sameBranch !== undefined) return compare(version, sameBranch) >= 0;
  // A branch that began later has it from the start; one that got no release of its own was given up.
  return compare(version, mended.at(-1) ?? '') > 0;
}

const nextOf = (version: string, mended: readonly string[]): string | undefined =>
  mended.find((one) => compare(one, version) > 0);

const numbersOf = (version: string): readonly number[] =>
  version.split('.').map((part) => parseInt(part, 10) || 0);

const branchOf = (version: string): string => numbersOf(version).slice(0, 2).join('.');

function compare(one: string, other: string): number {
  const [left, right] = [numbersOf(one), numbersOf(other)];
  for (let at = 0; at < 3; at += 1) {
    const difference = (left[at] ?? 0) - (right[at] ?? 0);
    if (difference !== 0) return difference;
  }
  return 0;
}
