import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';

const LIMIT_MS = 600_000;

export const installPackagesCommand = (packages: readonly string[]): string =>
  `apt-get update && apt-get install -y --no-install-recommends ${packages.join(' ')}`;

/** Installs Debian packages and prints the progress. Throws with the end of the output of apt-get. */
export async function installPackages(packages: readonly string[]): Promise<void> {
  const command = installPackagesCommand(packages);
  console.log(`Installing ${packages.length} Debian packages for the tests, once: ${packages.join(', ')}`);
  const child = spawn('sh', ['-c', command], {
    env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' },
    stdio: ['ignore', 'pipe', 'pipe'],
    timeout: LIMIT_MS,
  });
  const output: string[] = [];
  let settingUp = 0;
  createInterface(child.stdout).on('line', (line) => {
    output.push(line);
    const [, toInstall] = /(\d+) newly installed/.exec(line) ?? [];
    if (toInstall !== undefined) console.log(`  ${toInstall} packages with their dependencies`);
    const [, name = ''] = /^Setting up ([^: ]+)/.exec(line) ?? [];
    if (name !== '') settingUp += 1;
    if (packages.includes(name)) console.log(`  ${name} (${settingUp} set up)`);
  });
  createInterface(child.stderr).on('line', (line) => output.push(line));
  const [code] = (await once(child, 'close')) as [number | null];
  if (code !== 0) throw new Error(`${output.slice(-20).join('\n')}\nThis failed (exit code ${code}): ${command}`);
}
