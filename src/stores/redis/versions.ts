import { compareVersions } from '../../lib/compare-versions.ts';

export interface RedisVersion {
  readonly server: 'Redis' | 'Valkey';
  readonly version: string;
}

/** Valkey also reports the version of the Redis it is compatible with. */
export function readRedisVersion(getInfo: (name: string) => string | undefined): RedisVersion {
  const valkey = getInfo('valkey_version');
  return valkey === undefined
    ? { server: 'Redis', version: getInfo('redis_version') ?? '0' }
    : { server: 'Valkey', version: valkey };
}

interface Vulnerability {
  readonly cves: string;
  readonly impact: string;
  /** The first fixed release of each branch. */
  readonly fixedIn: Readonly<Record<RedisVersion['server'], readonly string[]>>;
}

/**
 * From the advisories of Redis and the release notes of Valkey. The advisory of 5 May 2026 lists all releases as affected, the
 * CVE record only those from 7.2: we follow the advisory.
 */
const VULNERABILITIES: readonly Vulnerability[] = [
  {
    cves: 'CVE-2025-49844, CVE-2025-46817 and CVE-2025-46818',
    impact: 'a user that may run scripts can take over the server',
    fixedIn: {
      Redis: ['6.2.20', '7.2.11', '7.4.6', '8.0.4', '8.2.2'],
      Valkey: ['7.2.11', '8.0.6', '8.1.4'],
    },
  },
  {
    cves: 'CVE-2026-23479',
    impact: 'a user that may run blocking commands can take over the server',
    fixedIn: {
      Redis: ['6.2.22', '7.2.14', '7.4.9', '8.2.6', '8.4.3', '8.6.3'],
      Valkey: ['7.2.13', '8.0.8', '8.1.7', '9.0.4'],
    },
  },
];

/** One line for each known vulnerability. Only warnings: distributions backport fixes without changing the version. */
export function findKnownVulnerabilities({ server, version }: RedisVersion): readonly string[] {
  return VULNERABILITIES.filter(({ fixedIn }) => !isFixed(version, fixedIn[server])).map(
    ({ cves, impact, fixedIn }) =>
      `${server} ${version} has ${cves} (${impact}), unless your distribution has backported the fix; it is fixed in ${fixedIn[server].find((fix) => compareVersions(fix, version) > 0)}`,
  );
}

function isFixed(version: string, fixedIn: readonly string[]): boolean {
  const sameBranch = fixedIn.find((one) => getBranch(one) === getBranch(version));
  if (sameBranch !== undefined) return compareVersions(version, sameBranch) >= 0;
  // Later branches contain the fix; earlier branches without a fixed release are no longer maintained.
  return compareVersions(version, fixedIn.at(-1) ?? '') > 0;
}

const getBranch = (version: string): string => version.split('.').slice(0, 2).join('.');
