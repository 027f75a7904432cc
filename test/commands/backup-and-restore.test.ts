import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { createLogger } from '../../src/observability/logger.ts';
import { openGateway } from '../../src/server/gateway.ts';
import { runCommand } from '../support/command-in-process.ts';
import { runGatehouse } from '../support/command-line.ts';
import { connect, until } from '../support/serve-process.ts';
import {
  baseSettings,
  startGateway,
  type TestGateway,
  type TokenGrant,
  writeAndLoadSettings,
} from '../support/test-gateway.ts';

let gateway: TestGateway;
/** A folder with one backup of the gateway. */
let backupFolder: string;
beforeAll(async () => {
  gateway = await startGateway();
  backupFolder = mkdtempSync(join(tmpdir(), 'gatehouse-backup-'));
  await gateway.grant();
  expect(await backup(backupFile())).toMatchObject({ code: 0, stderr: '' });
});
afterAll(async () => {
  await gateway?.close();
  rmSync(backupFolder, { recursive: true, force: true });
});
const backupFile = (): string => join(backupFolder, 'backup');

/** Another machine: the same configuration, certificates and upstream, without store and keys. */
let machine: string;
beforeEach(() => {
  machine = mkdtempSync(join(tmpdir(), 'gatehouse-restored-'));
  for (const file of ['ca.pem', 'server.pem', 'server-key.pem', 'gatehouse.yaml'])
    cpSync(join(gateway.folder, file), join(machine, file));
});
afterEach(() => rmSync(machine, { recursive: true, force: true }));

/** In a separate process, because the store is open in this one. */
const backup = (to: string) => runGatehouse(['backup', '--config', join(gateway.folder, 'gatehouse.yaml'), to]);
const restore = (from: string, ...more: string[]) =>
  runCommand(['restore', '--config', join(machine, 'gatehouse.yaml'), from, ...more]);

function restoreKeys(): void {
  mkdirSync(join(machine, 'data'), { mode: 0o700 });
  cpSync(join(gateway.folder, 'data/keys.json'), join(machine, 'data/keys.json'));
}

test('after restoring a backup made under load with the same keys, live grants can be refreshed and revoked ones stay revoked', async () => {
  const live = await gateway.grant();
  const ended = await gateway.grant();
  expect((await gateway.api('/authsvc/Revoke/Token', ended.access_token)).status).toBe(200);
  const stop = new AbortController();
  const refreshes = [0, 0, 0, 0];
  const load = refreshes.map(async (_, index) => {
    let grant: TokenGrant = await gateway.grant();
    while (!stop.signal.aborted) {
      const reply = await gateway.refresh(grant.refresh_token);
      if (reply.status !== 200) throw new Error(reply.text);
      grant = reply.json as unknown as TokenGrant;
      refreshes[index] = (refreshes[index] ?? 0) + 1;
    }
    return grant;
  });
  const total = (): number => refreshes.reduce((sum, count) => sum + count, 0);
  await until('all clients have refreshed', () => refreshes.every((count) => count > 0));
  const before = total();
  const file = join(machine, 'night.backup');
  const result = await backup(file);
  const during = total() - before;
  stop.abort();
  const served = await Promise.all(load);
  expect(result).toMatchObject({ code: 0, stderr: '' });
  expect(result.stdout).toContain('It contains no keys');
  expect((statSync(file).mode & 0o777).toString(8)).toBe('600');
  expect(during).toBeGreaterThan(0);

  restoreKeys();
  const restored = await restore(file);
  expect(restored, restored.stderr).toMatchObject({ code: 0, stderr: '' });
  expect(restored.stdout).toMatch(/restored \d+ records\nThe key file matches\. You can start gatehouse now\.\n$/);

  const other = await openGateway({
    settings: writeAndLoadSettings(machine, baseSettings(gateway.upstream.port)),
    log: createLogger({ level: 'error', format: 'json', write: () => {} }),
  });
  try {
    const client = connect(gateway, other.port);
    const call = async (token: string): Promise<number> =>
      (await client.request({ path: '/files/x', headers: { authorization: `Bearer ${token}` } })).status;
    expect([await call(live.access_token), await call(ended.access_token)]).toEqual([200, 401]);
    expect((await client.refresh(ended.refresh_token)).json).toMatchObject({ Error: 'invalid_grant' });
    for (const { refresh_token: token } of [live, ...served])
      expect((await client.refresh(token)).json).toMatchObject({ token_type: 'Bearer', scope: 'files:read' });
    client.close();
  } finally {
    await other.close();
  }
});

test('a backup does not overwrite a file', async () => {
  const file = join(machine, 'here.already');
  writeFileSync(file, 'precious');
  const { code, stderr } = await backup(file);
  expect(code).toBe(73);
  expect(stderr).toContain(`${file} already exists; a backup does not overwrite files`);
  expect(statSync(file).size).toBe('precious'.length);
});

test('a restore without the key file is rejected', async () => {
  const { code, stderr } = await restore(backupFile());
  expect(code).toBe(78);
  expect(stderr).toBe(
    `gatehouse: keys.file: ${join(machine, 'data/keys.json')} is missing; put the key file from the time of the backup there; the backup is verified with it\n`,
  );
});

test('a restore with other keys than those of the backup is rejected', async () => {
  expect((await runCommand(['keys', 'new', join(machine, 'data/keys.json')])).code).toBe(0);
  const { code, stderr } = await restore(backupFile());
  expect(code).toBe(65);
  expect(stderr).toMatch(/it was made with the key \w+, which keys\.file does not have/);
});

test('a backup without the key file of its store is rejected, and no new key file is suggested', async () => {
  const { code, stderr } = await runCommand([
    'backup',
    '--config',
    join(machine, 'gatehouse.yaml'),
    join(machine, 'b'),
  ]);
  expect(code).toBe(78);
  expect(stderr).toContain('keys.json is missing; put the key file of this store there');
  expect(stderr).not.toContain('keys new');
});

test('for a truncated backup, the advice is to use another one', async () => {
  restoreKeys();
  const file = join(machine, 'b');
  writeFileSync(file, readFileSync(backupFile()).subarray(0, -1));
  const { code, stderr } = await restore(file);
  expect(code).toBe(65);
  expect(stderr).toMatch(/truncated.*Use another backup$/m);
});

/** The trailer is `gatehouse backup 1 KEY BYTES MAC`. */
function changeMac(backupBytes: Buffer): Buffer {
  const args = backupBytes.lastIndexOf('gatehouse backup 1 ') + 'gatehouse backup 1 '.length;
  const mac = backupBytes.indexOf(' ', backupBytes.indexOf(' ', args) + 1) + 1;
  backupBytes.write(backupBytes.toString('latin1', mac, mac + 1) === 'A' ? 'B' : 'A', mac);
  return backupBytes;
}

test('an altered backup is rejected', async () => {
  restoreKeys();
  const file = join(machine, 'b');
  writeFileSync(file, changeMac(readFileSync(backupFile())));
  const { code, stderr } = await restore(file);
  expect([code, stderr]).toEqual([65, expect.stringContaining('its MAC is wrong')]);
});

test('a restore is rejected while gatehouse runs, and if a store exists already', async () => {
  const file = backupFile();
  // The key file of the running gatehouse exists.
  const running = await runGatehouse(['restore', '--config', join(gateway.folder, 'gatehouse.yaml'), file]);
  expect(running.code).toBe(69);
  expect(running.stderr).toContain('is in use by another gatehouse process; stop it');

  restoreKeys();
  expect((await restore(file)).code).toBe(0);
  const again = await restore(file);
  expect(again.code).toBe(73);
  expect(again.stderr).toMatch(
    /there is already a store in .*; restore into another folder, or move it elsewhere first/,
  );
});

test('a damaged backup is not restored', async () => {
  const file = join(machine, 'b');
  restoreKeys();
  writeFileSync(file, Buffer.alloc(65_536, 7));
  const { code, stderr } = await restore(file);
  expect(code).toBe(65);
  expect(stderr).toContain(`gatehouse: the backup ${file} was not restored: it has no MAC`);
});

test('a backup without a store fails', async () => {
  restoreKeys();
  const { code, stderr } = await runCommand([
    'backup',
    '--config',
    join(machine, 'gatehouse.yaml'),
    join(machine, 'b'),
  ]);
  expect(code).toBe(66);
  expect(stderr).toContain('there is no store in');
});

test('a backup into a folder that does not exist, and a restore of a file that does not exist, fail', async () => {
  restoreKeys();
  const missing = join(machine, 'missing/b');
  expect(await backup(missing)).toMatchObject({
    code: 73,
    stderr: `gatehouse: cannot write a backup to ${join(machine, 'missing')}\n`,
  });
  expect(await restore(missing)).toMatchObject({
    code: 66,
    stderr: `gatehouse: there is no backup ${missing}\n`,
  });
});
