import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';

const MAIN = join(import.meta.dirname, '../../src/main.ts');

test('gatehouse starts on a runtime whose built-in modules are not configurable', async () => {
  const preload =
    "const http = process.getBuiltinModule('node:http'); for (const name of ['WebSocket', 'CloseEvent', 'MessageEvent']) Object.defineProperty(http, name, { configurable: false });";
  const { stdout } = await promisify(execFile)(
    process.execPath,
    ['--import', `data:text/javascript,${encodeURIComponent(preload)}`, MAIN, '--version'],
    { timeout: 60_000 },
  );
  expect(stdout).toMatch(/\d+\.\d+\.\d+/);
});
