import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterEach, describe, expect, onTestFinished, test } from 'vitest';
import { createServiceManager } from '../../src/commands/service-manager.ts';
import type { LogFields } from '../../src/observability/logger.ts';
import { needs } from '../set-up/programs.ts';
import { createServeFolder, type ServeFolder, startServe, until } from '../support/serve-process.ts';

needs('python3');

/** Receives the datagrams in place of systemd. Uses Python, because Node has no Unix datagram sockets. */
const LISTENER = `
import array, os, socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
s.bind(sys.argv[1])
print('listening', flush=True)
while True:
    data, ancillary, _, _ = s.recvmsg(4096, socket.CMSG_SPACE(64))
    # The sender waits until its barrier is closed, which systemd does after reading all earlier messages.
    for level, kind, fds in ancillary:
        if kind == socket.SCM_RIGHTS:
            for fd in array.array('i', fds):
                os.close(fd)
    for text in data.decode().split('\\n'):
        print(text, flush=True)
`;

import { chooseVariants } from '../support/variants.ts';

interface Manager {
  readonly socket: string;
  readonly notifications: readonly string[];
}

const open: { child: ChildProcess; folder: string }[] = [];
const folders: ServeFolder[] = [];
afterEach(async () => {
  for (const folder of folders.splice(0)) await folder.remove();
  for (const { child, folder } of open.splice(0)) {
    child.kill('SIGKILL');
    rmSync(folder, { recursive: true, force: true });
  }
});

async function listen(): Promise<Manager> {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-notify-'));
  const socket = join(folder, 'notify');
  const child = spawn('python3', ['-c', LISTENER, socket], { stdio: ['ignore', 'pipe', 'inherit'] });
  open.push({ child, folder });
  const notifications: string[] = [];
  createInterface({ input: child.stdout }).on('line', (line) => void notifications.push(line));
  await until('the socket exists', () => notifications.includes('listening'));
  return { socket, notifications };
}

const createTestLogger = (lines: { event: string; fields: LogFields }[]) => {
  const write = (event: string, fields: LogFields = {}): void => void lines.push({ event, fields });
  return { debug: write, info: write, warn: write, error: write, audit: write };
};

const notifies = existsSync('/usr/bin/systemd-notify');

describe.skipIf(!notifies)('A11 systemd is notified of the state of gatehouse', () => {
  test.each(chooseVariants([1, 2], [2]))(
    'READY, RELOADING, READY, STOPPING, and heartbeats (%i workers)',
    async (workers) => {
      const { socket, notifications } = await listen();
      const folder = await createServeFolder((settings) => ({
        ...settings,
        shutdown: { preStop: '0s', drain: '5s' },
      }));
      folders.push(folder);
      const server = await startServe(folder, {
        set: [`listen.workers=${workers}`],
        env: { NOTIFY_SOCKET: socket, WATCHDOG_USEC: '200000' },
      });
      await until('READY is received', () => notifications.includes('READY=1'));
      expect(notifications).toContain(`MAINPID=${server.pid}`);
      expect(notifications.find((line) => line.startsWith('STATUS='))).toMatch(/^STATUS=serving https:/);
      await until(
        'two heartbeats are received',
        () => notifications.filter((line) => line === 'WATCHDOG=1').length >= 2,
      );
      server.signal('SIGHUP');
      await until('RELOADING is received', () => notifications.includes('RELOADING=1'));
      await until('READY again', () => notifications.lastIndexOf('READY=1') > notifications.indexOf('RELOADING=1'));
      expect(await server.stop()).toBe(0);
      await until('STOPPING is received', () => notifications.includes('STOPPING=1'));
      // Workers send no notifications.
      expect(notifications.filter((line) => line === 'READY=1')).toHaveLength(2);
      expect(notifications.filter((line) => line === 'STOPPING=1')).toHaveLength(1);
    },
  );

  test('nothing is sent without a notify socket, and no heartbeat for another process', async () => {
    const { socket, notifications } = await listen();
    const log = createTestLogger([]);
    createServiceManager({ env: {}, log }).ready('unasked');
    createServiceManager({ env: { NOTIFY_SOCKET: 'relative' }, log }).ready('relative');
    const other = { NOTIFY_SOCKET: socket, WATCHDOG_USEC: '2000', WATCHDOG_PID: '1' };
    const manager = createServiceManager({ env: other, log });
    manager.ready('asked');
    manager.stopping();
    await until('STOPPING is received', () => notifications.includes('STOPPING=1'));
    expect(notifications.filter((line) => /^(STATUS|WATCHDOG)=/.test(line))).toEqual([
      'STATUS=asked',
      'STATUS=draining',
    ]);
  });
});

test('A11 a missing notification program is logged as one warning', async () => {
  const lines: { event: string; fields: LogFields }[] = [];
  const env = { NOTIFY_SOCKET: '/nowhere/notify' };
  createServiceManager({ env, log: createTestLogger(lines), program: '/nowhere/systemd-notify' }).ready('one');
  await until('a line is logged', () => lines.length > 0);
  expect(lines).toEqual([
    { event: 'service_manager_unreachable', fields: { problem: '/nowhere/systemd-notify (ENOENT)' } },
  ]);
});

test('A11 an unreachable service manager is logged only once', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-notify-'));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const [program, calls] = [join(folder, 'notify'), join(folder, 'calls')];
  writeFileSync(program, `#!/bin/sh\necho "$1" >> '${calls}'\nexit 1\n`, { mode: 0o700 });
  const lines: { event: string; fields: LogFields }[] = [];
  const manager = createServiceManager({
    env: { NOTIFY_SOCKET: '/nowhere/notify' },
    log: createTestLogger(lines),
    program,
  });
  manager.ready('one');
  manager.reloading();
  manager.ready('two');
  manager.stopping();
  // Calls are made one after another.
  await until('the last call was made', () => existsSync(calls) && readFileSync(calls, 'utf8').includes('STOPPING=1'));
  expect(readFileSync(calls, 'utf8')).toBe('READY=1\nRELOADING=1\nREADY=1\nSTOPPING=1\n');
  expect(lines).toEqual([{ event: 'service_manager_unreachable', fields: { problem: `${program} (1)` } }]);
});
