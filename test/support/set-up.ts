import { spawnSync } from 'node:child_process';
import { accessSync, constants } from 'node:fs';
import { delimiter, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** Programs the tests call beside Node, and the Debian packages they come in. */
const NEEDED: readonly { readonly program: string; readonly package: string }[] = [
  { program: 'curl', package: 'curl' },
  { program: 'openssl', package: 'openssl' },
  { program: 'nginx', package: 'nginx-light' },
  { program: 'haproxy', package: 'haproxy' },
  { program: 'caddy', package: 'caddy' },
  { program: 'redis-server', package: 'redis-server' },
  { program: 'systemd-analyze', package: 'systemd' },
  // Independent clients are Python packages, in a folder of their own (python.ts).
  { program: 'python3', package: 'python3' },
  { program: 'pip3', package: 'python3-pip' },
  { program: 'promtool', package: 'prometheus' },
  { program: 'chromium', package: 'chromium' },
  { program: 'slapd', package: 'slapd' },
];

const LIMIT_MS = 300_000;

const COMPILED = fileURLToPath(new URL('../../node_modules/.cache/compiled', import.meta.url));

export default function setUp(): () => void {
  // The tests start hundreds of processes from the same sources; reading them is half the work of each.
  process.env['NODE_COMPILE_CACHE'] ??= COMPILED;
  installMissing();
  return leaveInTime;
}

const LEAVE_MS = 60_000;

/** After all tests: a program that one of them has left behind holds our pipes, and would be waited for without end. */
function leaveInTime(): void {
  setTimeout(() => {
    process.stderr.write('the tests are over; something they started still runs and is not waited for\n');
    process.exit();
  }, LEAVE_MS).unref();
}

/** Before all tests: what is missing is installed where we may, and named where we may not. */
function installMissing(): void {
  const missing = NEEDED.filter(({ program }) => !isInstalled(program));
  if (missing.length === 0) return;
  const packages = [...new Set(missing.map((needed) => needed.package))];
  const command = `apt-get update && apt-get install -y --no-install-recommends ${packages.join(' ')}`;
  if (process.geteuid?.() !== 0 || !isInstalled('apt-get'))
    throw new Error(`the tests need ${packages.join(', ')}; install them as root:\n  ${command}`);
  console.log(`installing for the tests: ${packages.join(', ')}`);
  const { status, stderr } = spawnSync('sh', ['-c', command], {
    env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' },
    stdio: ['ignore', 'ignore', 'pipe'],
    encoding: 'utf8',
    timeout: LIMIT_MS,
  });
  const still = missing.filter(({ program }) => !isInstalled(program));
  if (status !== 0 || still.length > 0)
    throw new Error(`this did not succeed (${status}): ${command}\n${stderr.slice(-2_000)}`);
}

function isInstalled(program: string): boolean {
  return (process.env['PATH'] ?? '').split(delimiter).some((folder) => {
    try {
      accessSync(join(folder, program), constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });
}
