#!/usr/bin/env node
// Starts gatehouse on Node 26, whatever `node` the caller has: the pinned one of this installation when the
// caller's is older. In a checkout the TypeScript sources run as they are; an installed package runs dist/.
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const here = (path) => fileURLToPath(new URL(`../${path}`, import.meta.url));
const entry = [here('src/main.ts'), here('dist/main.js')].find((file) => existsSync(file));

if (entry === undefined) {
  console.error('gatehouse: neither src/main.ts nor dist/main.js is here; run `npm run build`');
  process.exit(70);
}

if (Number(process.versions.node.split('.')[0]) >= 26) {
  process.argv[1] = entry;
  await import(entry);
} else {
  // Of a checkout; or beside us, where npm puts what an installed package needs.
  const node = [here('node_modules/.bin/node'), here('../.bin/node')].find((file) => existsSync(file));
  if (node === undefined) {
    console.error(`gatehouse: needs Node 26 or later, this is ${process.version}; run \`npm ci\` first`);
    process.exit(70);
  }
  const child = spawn(node, [entry, ...process.argv.slice(2)], { stdio: 'inherit' });
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR2', 'SIGPWR'])
    process.on(signal, () => child.kill(signal));
  child.on('exit', (code, signal) => process.exit(code ?? (signal ? 128 : 70)));
}
