import { rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { finish } from '../support/child-process.ts';
import { spawnDemo, temporaryFolder } from '../support/demo.ts';
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
  const child = spawnDemo(folder, {
    args: zero.flatMap((other) => ['--set', `${other}=0`]),
    env: { [variable]: String(port) },
  });
  onTestFinished(() => child.signal('SIGKILL'));
  const { code, output } = await finish(child);
  expect(code, output).toBe(78);
  expect(output).toContain(`${setting}: 127.0.0.1:${port} is in use by another program`);
  expect(output).toContain('for other ports: gatehouse demo --set listen.port=8444 --set admin.port=9444\n');
});
