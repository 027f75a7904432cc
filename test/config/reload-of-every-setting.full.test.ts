import { copyFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type JsonSchema, settingAt } from '../../src/config/known-settings.ts';
import { loadSettings } from '../../src/config/load.ts';
import type { Settings } from '../../src/config/schema.ts';
import { formatPath, getAt, type SettingPath, type Tree, type TreeObject } from '../../src/config/setting-path.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { type Gateway, openGateway } from '../../src/server/gateway.ts';
import { createForeignKey, formatKeySet } from '../support/foreign-issuer.ts';
import { jsonPostInit, sendRequest } from '../support/https-client.ts';
import { createCa, createCrl, issueServer } from '../support/pki.ts';
import { type TempFolder, tempFolder } from '../support/temp-folder.ts';
import { startUpstream, type Upstream } from '../support/test-gateway.ts';
import {
  createBase,
  EXAMPLES,
  formatSchemaPath,
  HANDED_OVER,
  LEAVES,
  listCandidates,
  listPlaces,
  recordReads,
  type SchemaPath,
  SECRET_FILES,
  TOGETHER,
  USED_OTHERWISE,
  withValue,
} from './every-setting.ts';

/**
 * Every setting of the schema is changed in a running gateway. The change must apply at the reload, which shows in the new
 * runtime configuration reading the setting, or be reported as needing a restart.
 */

let folder: TempFolder;
let upstream: Upstream;
let base: TreeObject;
let gateway: Gateway;
/** Settings of the initial configuration that were read after the start. */
const staleReads = new Set<string>();
let started: Settings;

const load = (input: TreeObject): Settings | undefined => {
  const loaded = loadSettings({ env: { GATEHOUSE_CONFIG_YAML: JSON.stringify(input) }, cwd: folder.path });
  return loaded.ok ? loaded.settings : undefined;
};
const valueAt = (settings: Settings | undefined, path: SettingPath): string =>
  JSON.stringify(getAt(settings as unknown as Tree, path), (_key, value: unknown) =>
    value instanceof Map || value instanceof Set ? [...value] : value,
  );

interface Change {
  readonly place: SettingPath;
  readonly settings: Settings;
}

function createChange(path: SchemaPath, json: JsonSchema): Change {
  const name = formatSchemaPath(path);
  const together = TOGETHER[name]?.(base);
  if (together) {
    const settings = load(together.reduce((tree, [place, value]) => withValue(tree, place, value), base));
    const [[place] = [[]]] = together;
    if (settings && valueAt(settings, place) !== valueAt(started, place)) return { place, settings };
  }
  const [last = ''] = path.slice(-1);
  for (const place of listPlaces(base, path)) {
    // `passwordFile` sets `password`, and replaces it.
    const twin = [...place.slice(0, -1), last.replace(/File$/, '')];
    const isSecretFile = last.endsWith('File') && settingAt(twin) !== undefined;
    const target = isSecretFile ? twin : place;
    if (isSecretFile) folder.write('secret.txt', SECRET_FILES[name] ?? 'a-secret-in-a-file');
    const current = getAt(base, place) ?? json.default ?? null;
    const example = EXAMPLES[name];
    const candidates = isSecretFile
      ? ['secret.txt']
      : example === undefined
        ? listCandidates(json, current as Tree)
        : [example];
    for (const candidate of candidates) {
      const withoutTwin = isSecretFile ? withValue(base, target, undefined) : base;
      const settings = load(withValue(withoutTwin, place, candidate));
      if (settings && valueAt(settings, target) !== valueAt(started, target)) return { place: target, settings };
    }
  }
  throw new Error(`no other valid value for ${name}: add one to EXAMPLES or TOGETHER in every-setting.ts`);
}

/** Requests that use settings which are read when they are needed. */
async function useGateway(): Promise<void> {
  const options = { port: gateway.port, rejectUnauthorized: false };
  await sendRequest({ ...options, path: '/health' });
  await sendRequest({
    ...options,
    ...jsonPostInit('/Authorize/Device', { client_id: 'app', scope: 'files:read' }),
  });
}

beforeAll(async () => {
  folder = tempFolder('every-setting');
  upstream = await startUpstream();
  const ca = await createCa();
  const server = await issueServer(ca);
  folder.write('ca.pem', ca.pem);
  folder.write('crl.pem', (await createCrl(ca)).pem);
  folder.write('server.pem', server.pem);
  folder.write('server-key.pem', server.keyPem);
  folder.write('jwks.json', formatKeySet(await createForeignKey()));
  folder.write('logo.svg', '<svg xmlns="http://www.w3.org/2000/svg"/>');
  base = createBase(upstream.port);
  const settings = load(base);
  if (!settings) throw new Error('the configuration of this test is invalid');
  started = settings;
  const log = createLogger({ level: 'info', format: 'json', write: () => {} });
  gateway = await openGateway({ settings: recordReads(settings, (path) => staleReads.add(path)), log });
  for (const file of ['ca.pem', 'server.pem', 'server-key.pem', 'jwks.json'])
    copyFileSync(folder.file(file), folder.file(`copy-of-${file}`));
  copyFileSync(folder.file('data/keys.json'), folder.file('data/copy-of-keys.json'));
  // The first reload compares its settings with those of the start.
  await gateway.reload(settings);
  staleReads.clear();
});
afterAll(async () => {
  await gateway.close();
  await upstream.close();
  folder.remove();
});

test('the schema has settings, and the tables of this test name existing ones', () => {
  expect(LEAVES.length).toBeGreaterThan(200);
  const names = new Set(LEAVES.map(([path]) => formatSchemaPath(path)));
  expect(
    [EXAMPLES, TOGETHER, USED_OTHERWISE, SECRET_FILES]
      .flatMap((table) => Object.keys(table))
      .filter((name) => !names.has(name)),
  ).toEqual([]);
});

const reloadWith = async ({ settings }: Change) => {
  const reads = new Map<string, number>();
  const pendingRestart = await gateway.reload(
    recordReads(settings, (path) => reads.set(path, (reads.get(path) ?? 0) + 1)),
  );
  return { reads, pendingRestart };
};

describe('a change applies at a reload, or is reported as needing a restart', () => {
  test.each(LEAVES.map(([path, json]) => [formatSchemaPath(path), path, json] as const))(
    '%s',
    async (name, path, json) => {
      const change = createChange(path, json);
      const { reads, pendingRestart } = await reloadWith(change);
      if (settingAt(change.place)?.appliesAfter !== undefined) {
        expect(pendingRestart).toContain(formatPath(change.place));
        return;
      }
      expect(pendingRestart).toEqual([]);
      if (Object.hasOwn(USED_OTHERWISE, name)) return;
      const depth = HANDED_OVER.find((group) => name.startsWith(`${group}.`))?.split('.').length;
      const read = formatPath(change.place.slice(0, depth));
      if (!reads.has(read)) await useGateway();
      expect([...reads.keys()], 'settings that are read at the reload or when used').toContain(read);
    },
  );

  test.each(['limits.connections', 'log.level', 'store.prefix', 'tracing.service'])(
    'this test would detect that %s is read only at start',
    async (name) => {
      const [path = [], json = {}] = LEAVES.find(([leaf]) => formatSchemaPath(leaf) === name) ?? [];
      const { reads } = await reloadWith(createChange(path, json));
      await useGateway();
      // Read once, by the comparison that reports it.
      expect(reads.get(name)).toBe(1);
    },
  );

  test('the initial settings are no longer used, except for those that need a restart', () => {
    // An upstream that has not changed keeps its connections and health checks.
    const leaves = LEAVES.filter(([[section]]) => section !== 'upstreams');
    const stale = leaves
      .flatMap(([path]) => listPlaces(base, path))
      .filter((place) => staleReads.has(formatPath(place)) && settingAt(place)?.appliesAfter === undefined);
    expect(stale.map(formatPath)).toEqual([]);
  });

  test('shutdown settings apply at the shutdown after the reload', async () => {
    const settings = load({ ...base, shutdown: { preStop: '1ms', drain: '2s' } });
    const reads = new Set<string>();
    await gateway.reload(recordReads(settings as Settings, (path) => reads.add(path)));
    await gateway.drain();
    expect([...reads]).toEqual(expect.arrayContaining(['shutdown.preStop', 'shutdown.drain']));
  });
});
