import { rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { spawnDemo, temporaryFolder, until } from '../support/demo.ts';
import { walkThrough } from './demo-walkthrough.ts';

walkThrough('sh', true);

let folder: string;
beforeAll(() => {
  folder = temporaryFolder();
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

test.each([
  { setting: 'listen.port', variable: 'GATEHOUSE_LISTEN__PORT' },
  { setting: 'admin.port', variable: 'GATEHOUSE_ADMIN__PORT' },
])('a port in use at $setting is reported with what to write instead', async ({ setting, variable }) => {
  const taken = createServer();
  await new Promise<void>((resolve) => taken.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => void taken.close());
  const { port } = taken.address() as { readonly port: number };
  const zero = ['listen.port', 'admin.port'].filter((other) => other !== setting);
  const { child, printed } = spawnDemo(folder, {
    args: zero.flatMap((other) => ['--set', `${other}=0`]),
    env: { [variable]: String(port) },
  });
  onTestFinished(() => void child.kill('SIGKILL'));
  await until('the demo has exited', () => child.exitCode !== null);
  expect(child.exitCode).toBe(78);
  expect(printed()).toContain(`${setting}: 127.0.0.1:${port} is in use by another program`);
  expect(printed()).toContain(`--set ${setting}=${port + 1}`);
  expect(printed()).toContain(`${variable}=${port + 1} npm start`);
});
