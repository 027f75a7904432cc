import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync, readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { join } from 'node:path';
import { Writable } from 'node:stream';
import { describe, expect, onTestFinished, test } from 'vitest';
import { DeliveryQueue } from '../../src/lib/delivery-queue.ts';
import { redactText } from '../../src/lib/redact.ts';
import { createStdoutSink } from '../../src/observability/logger.ts';
import { createServeFolder, until } from '../support/serve-process.ts';
import { startGateway } from '../support/test-gateway.ts';

const MAIN = join(import.meta.dirname, '../../src/main.ts');

/** Finds the TCP ports a process listens on through its file descriptors, since its log cannot be read. */
function findListeningPorts(pid: number): number[] {
  const inodes = new Set(
    readdirSync(`/proc/${pid}/fd`).map((fd) => {
      try {
        return /^socket:\[(\d+)\]$/.exec(readlinkSync(`/proc/${pid}/fd/${fd}`))?.[1];
      } catch {
        return undefined;
      }
    }),
  );
  // proc_pid_net(5): the local address is the second field, the state the fourth (0A: LISTEN), the inode the tenth.
  return readFileSync(`/proc/${pid}/net/tcp`, 'latin1')
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .filter(([, , , state, , , , , , inode]) => state === '0A' && inodes.has(inode))
    .map(([, local = '']) => Number.parseInt(local.split(':')[1] ?? '', 16));
}

const fetchText = (port: number, path: string): Promise<string | undefined> =>
  fetch(`http://127.0.0.1:${port}${path}`).then(
    (response) => (response.ok ? response.text() : undefined),
    () => undefined,
  );

describe('the log on standard output', () => {
  test.each(['a full disk', 'a closed pipe'])(
    'on %s loses lines, but the process keeps serving and reloading',
    async (output) => {
      const folder = await createServeFolder();
      onTestFinished(() => folder.remove());
      const full = openSync('/dev/full', 'w');
      onTestFinished(() => closeSync(full));
      const child = spawn(process.execPath, [MAIN, 'serve', '--config', folder.file('gatehouse.yaml')], {
        stdio: ['ignore', output === 'a full disk' ? full : 'pipe', 'ignore'],
      });
      const ended = once(child, 'exit');
      onTestFinished(async () => {
        child.kill('SIGKILL');
        await ended;
      });
      child.stdout?.destroy();
      const adminPort = await until('the admin listener is open', async () => {
        for (const port of findListeningPorts(child.pid ?? 0))
          if ((await fetchText(port, '/livez')) !== undefined) return port;
        return undefined;
      });
      const getReloadTime = async (): Promise<number> => {
        const metrics = await fetchText(adminPort, '/metrics');
        return Number(/^gatehouse_config_reload_success_timestamp_seconds (\S+)$/m.exec(metrics ?? '')?.[1]);
      };
      const before = await until('the process is ready', async () =>
        (await fetchText(adminPort, '/readyz')) === undefined ? undefined : getReloadTime(),
      );
      // A reload logs lines, which fail to be written.
      child.kill('SIGHUP');
      await until('the configuration is reloaded', async () => (await getReloadTime()) > before);
      expect(await fetchText(adminPort, '/livez')).toBeDefined();
      expect([child.exitCode, child.signalCode]).toEqual([null, null]);
    },
  );

  test('counts lost lines and reports them with the next line that is written', () => {
    let isBroken = true;
    const seen: string[] = [];
    const lost: number[] = [];
    const stream = new Writable({ decodeStrings: false });
    stream.write = (text: string, done: unknown) => {
      if (!isBroken) seen.push(text);
      if (typeof done === 'function') done(isBroken ? new Error('ENOSPC') : undefined);
      return true;
    };
    const sink = createStdoutSink(stream, (writes) => lost.push(writes));
    for (const line of ['one', 'two']) {
      sink.write(line);
      sink.flush();
    }
    isBroken = false;
    sink.write('three');
    sink.flush();
    expect(lost).toEqual([2]);
    expect(seen).toEqual(['three']);
  });
});

describe('a long client_id', () => {
  test('of 16 KiB is not logged in full', async () => {
    const gateway = await startGateway();
    onTestFinished(() => gateway.close());
    await gateway.post('/Authorize/Token', { client_id: 'a.'.repeat(8_000), refresh_token: 'x' });
    await until('the request is logged', () => gateway.log.some(({ event }) => event === 'request'));
    for (const line of gateway.logLines) expect(line.length).toBeLessThan(2_048);
  });

  test('is redacted in linear time', () => {
    // Quadratic behaviour, as in an earlier version, would take minutes for this text and exceed the test timeout.
    const text = `://${'a.'.repeat(256 * 1_024)}`;
    expect(redactText(text)).toBe(text);
  });
});

test('refusals caused by unauthenticated clients do not block the audit queue; events that must be recorded do', async () => {
  const delivery = Promise.withResolvers<void>();
  const outbox = new DeliveryQueue<string>({
    deliver: () => delivery.promise,
    maxPending: 4,
    batchSize: 1,
    isLowPriority: (item) => item.startsWith('refused'),
  });
  for (let at = 0; at < 20; at += 1) outbox.enqueue(`refused ${at}`);
  expect(outbox.pending()).toBe(4);
  expect(outbox.isBlocked()).toBe(false);
  for (let at = 0; at < 4; at += 1) outbox.enqueue(`issued ${at}`);
  expect(outbox.isBlocked()).toBe(true);
  delivery.resolve();
  await outbox.close(30_000);
});
