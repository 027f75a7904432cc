import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { installCommand, isInstalled, missingPrograms, packagesOf, skippedFiles } from './programs.ts';

/**
 * Runs before the tests (`pretest`): installs the Debian and Python packages they need. If it may not install, it reports what
 * is missing, and the tests that need it are skipped.
 */
const LIMIT_MS = 600_000;

await installPrograms();
if (isInstalled('python3') && isInstalled('pip3')) {
  // Imported dynamically, because the module throws without Python.
  const { installPythonTools } = await import('../clients/python.ts');
  await installPythonTools().catch((error: unknown) => {
    console.error(String(error));
    console.error(`The Python packages of test/clients/requirements.txt cannot be installed: is PyPI reachable?
To run all tests without those that need them, take python3 and pip3 out of PATH.`);
    process.exit(1);
  });
}

async function installPrograms(): Promise<void> {
  const missing = missingPrograms();
  if (missing.length === 0) return;
  const packages = packagesOf(missing);
  const command = installCommand(missing);
  if (process.geteuid?.() !== 0 || !isInstalled('apt-get')) {
    const files = skippedFiles().files.filter((file) => !file.endsWith('.full.test.ts'));
    console.log(
      `Not installed: ${packages.join(', ')}. ${files.length} test files that need them will be skipped.`,
    );
    console.log(`To run them too, install the packages as root:\n  ${command}`);
    return;
  }
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
  const still = missing.filter((program) => !isInstalled(program));
  if (code === 0 && still.length === 0) return;
  console.error(`${output.slice(-20).join('\n')}\nThis failed (exit code ${code}): ${command}`);
  process.exit(1);
}
