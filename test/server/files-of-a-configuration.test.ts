import { appendFileSync, renameSync } from 'node:fs';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { settingAt } from '../../src/config/known-settings.ts';
import { type InvalidConfig, type LoadedConfig, loadSettings } from '../../src/config/load.ts';
import { getAt, type SettingPath, type TreeObject } from '../../src/config/setting-path.ts';
import { StartError } from '../../src/lib/start-error.ts';
import { FileWatch } from '../../src/lib/watch-files.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { openGateway } from '../../src/server/gateway.ts';
import { Reloader } from '../../src/server/reloader.ts';
import { createKeyringFile } from '../../src/tokens/keyring-file.ts';
import {
  createBase,
  formatSchemaPath,
  LEAVES,
  listPlaces,
  type SchemaPath,
  SECRET_FILES,
  withValue,
} from '../config/every-setting.ts';
import { createForeignKey, formatKeySet } from '../support/foreign-issuer.ts';
import { createCa, createCrl, issueServer } from '../support/pki.ts';
import { type TempFolder, tempFolder } from '../support/temp-folder.ts';
import { until } from '../support/until.ts';

/** A setting that names a file, in the configuration of this test. The file is named like the setting. */
interface FileSetting {
  readonly name: string;
  readonly place: SettingPath;
}

/** The settings that name a file by the schema, and entries of lists that are a file or a group. */
const FILE_PATHS: readonly SchemaPath[] = [
  ...LEAVES.filter(([, { title }]) => title === 'path').map(([path]) => path),
  ['certificates', 'issuers', '*'],
  ['certificates', 'crls', '*'],
];

/** Where several entries exist, and not every one accepts the setting. */
const ENTRIES: Readonly<Record<string, SettingPath>> = {
  'certificates.issuers.*': ['certificates', 'issuers', 1],
  'certificates.crls.*': ['certificates', 'crls', 1],
  'integrations.*.jwksFile': ['integrations', 2, 'jwksFile'],
  'upstreams.*.ca': ['upstreams', 'secure', 'ca'],
  'upstreams.*.certificate': ['upstreams', 'secure', 'certificate'],
  'upstreams.*.key': ['upstreams', 'secure', 'key'],
};

let folder: TempFolder;
let settings: readonly FileSetting[];

const load = (): LoadedConfig | InvalidConfig => loadSettings({ env: {}, file: folder.file('gatehouse.json') });
const listReadAt = (time: string): readonly FileSetting[] =>
  settings.filter(({ place }) => settingAt(place)?.readAt === time);

/** A configuration with every group of settings that has a file. */
function createGroups(): TreeObject {
  const { integrations, certificates, ...base } = createBase(1);
  const [first, second] = integrations as TreeObject[];
  return {
    ...base,
    keys: {},
    tracing: {},
    certificates: { ...(certificates as TreeObject), crls: [{ url: 'http://127.0.0.1:1/ca.crl' }, ''] },
    integrations: [
      { ...first, jwksUri: 'https://127.0.0.1:1/keys' },
      { ...second, clientDocuments: { hosts: ['agents.example.test'] }, grants: ['code'] },
      { clientId: 'third', scope: 'files:read' },
    ] as TreeObject[],
  };
}

function findPlace(configuration: TreeObject, path: SchemaPath): SettingPath {
  const name = formatSchemaPath(path);
  const isPossible = (place: SettingPath): boolean => getAt(configuration, place.slice(0, -1)) !== undefined;
  const place = ENTRIES[name] ?? listPlaces(configuration, path).find(isPossible);
  if (place === undefined) throw new Error(`no place for ${name}: add its group to the configuration of this test`);
  return place;
}

async function createContent(): Promise<(name: string) => string> {
  const [ca, other] = [await createCa(), await createCa({ name: 'CN=Other CA' })];
  const server = await issueServer(ca);
  const contents: Readonly<Record<string, string>> = {
    ...SECRET_FILES,
    'keys.file': JSON.stringify(createKeyringFile('EdDSA')),
    'certificates.issuers.*.file': ca.pem,
    'certificates.issuers.*': other.pem,
    'certificates.crls.*': (await createCrl(ca)).pem,
    'trustedIssuers.*.jwksFile': formatKeySet(await createForeignKey()),
    'pages.logo': '<svg xmlns="http://www.w3.org/2000/svg"/>',
  };
  const byEnd = { certificate: server.pem, key: server.keyPem, ca: ca.pem, clientCa: ca.pem, jwksCa: ca.pem };
  return (name) =>
    contents[name] ??
    Object.entries(byEnd).find(([end]) => name.endsWith(`.${end}`))?.[1] ??
    'a-secret-of-enough-characters-for-every-setting';
}

beforeAll(async () => {
  folder = tempFolder('files-of-a-configuration');
  const getContent = await createContent();
  let configuration = createGroups();
  settings = FILE_PATHS.map((path) => {
    const name = formatSchemaPath(path);
    const place = findPlace(configuration, path);
    // `passwordFile` replaces `password`.
    const twin = [...place.slice(0, -1), String(place.at(-1)).replace(/File$/, '')];
    if (name.endsWith('File')) configuration = withValue(configuration, twin, undefined);
    configuration = withValue(configuration, place, name);
    if (name !== 'store.path') folder.write(name, getContent(name));
    return { name, place };
  });
  folder.write('gatehouse.json', JSON.stringify(configuration));
});
afterAll(() => folder.remove());

test('a change of a file that is read at a reload causes a reload, a change of another file does not', async () => {
  const loaded = load();
  if (!loaded.ok) throw new Error(JSON.stringify(loaded.problems));
  let reloads = 0;
  const reloader = new Reloader({
    load,
    gateway: Promise.resolve({
      async reload() {
        reloads += 1;
        return [];
      },
      rejectReload: (problems) => expect.unreachable(problems.join()),
    }),
    settings: loaded.settings,
    files: loaded.files,
    log: createLogger({ level: 'error', format: 'json', write: () => {} }),
  });
  onTestFinished(() => reloader.close());
  const others = [...listReadAt('start'), ...listReadAt('use')].filter(({ name }) => name !== 'store.path');
  // It is created later than the one of the reloader, with the same times: what it reports, the other would have reported.
  const reported = new Set<string>();
  const witness = new FileWatch(
    others.map(({ name }) => folder.file(name)),
    (changed) => changed.forEach((file) => reported.add(file)),
  );
  onTestFinished(() => witness.close());
  for (const { name } of others) appendFileSync(folder.file(name), '\n');
  await until('the other files are noticed', () => reported.size === others.length);
  expect(reloads).toBe(0);
  for (const { name } of listReadAt('reload')) {
    const before = reloads;
    appendFileSync(folder.file(name), '\n');
    await until(`the change of ${name} causes a reload`, () => reloads > before);
  }
});

test('a reload reads the files that the schema marks so, and no others', async () => {
  const events: string[] = [];
  const started = load();
  if (!started.ok) throw new Error(JSON.stringify(started.problems));
  const gateway = await openGateway({
    settings: started.settings,
    log: createLogger({ level: 'error', format: 'json', write: (line) => events.push(line) }),
  });
  onTestFinished(() => gateway.close());
  /** What is reported about the configuration when this file is missing. */
  const reloadWithout = async (file: string): Promise<string> => {
    events.length = 0;
    renameSync(file, `${file}.away`);
    try {
      const loaded = load();
      if (!loaded.ok) return JSON.stringify(loaded.problems);
      await gateway.reload(loaded.settings);
      return events.join();
    } catch (error) {
      if (error instanceof StartError) return error.problems.join();
      throw error;
    } finally {
      renameSync(`${file}.away`, file);
    }
  };
  for (const { name } of settings) {
    if (name === 'store.path') continue;
    const report = await reloadWithout(folder.file(name));
    const isRead = listReadAt('reload').some((setting) => setting.name === name);
    if (isRead) expect(report, `${name} is read at a reload`).toContain(folder.file(name));
    else expect(report, `${name} is not read at a reload`).toBe('');
  }
});
