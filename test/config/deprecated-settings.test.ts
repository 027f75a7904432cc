import { Ajv2020 } from 'ajv/dist/2020.js';
import { describe, expect, test } from 'vitest';
import { getJsonSchema } from '../../src/config/known-settings.ts';
import { formatDeprecations, type LoadedConfig, logDeprecations } from '../../src/config/load.ts';
import type { Settings } from '../../src/config/schema.ts';
import { renderReference } from '../../tools/configuration-page.ts';
import { loadProblems, loadText } from '../support/configuration.ts';

const LDAP = 'url: "ldaps://a", bindDn: "cn=g", password: p, base: "dc=x"';
const TLS = 'certificate: c.pem, key: k.pem';

interface Renamed {
  readonly former: string;
  readonly current: string;
  readonly variable: string;
  readonly value: string;
  readonly read: (settings: Settings) => unknown;
  readonly expected: unknown;
  /** The configuration around the setting. */
  readonly write: (setting: string) => string;
}

const RENAMED: readonly Renamed[] = [
  {
    former: 'listen.fastLane',
    current: 'listen.fastPath',
    variable: 'GATEHOUSE_LISTEN__FAST_LANE',
    value: 'false',
    read: ({ listen }) => listen.fastPath,
    expected: false,
    write: (setting) => `listen: { behindTls: true, ${setting} }`,
  },
  {
    former: 'listen.tls.nameIssuers',
    current: 'listen.tls.advertiseIssuers',
    variable: 'GATEHOUSE_LISTEN__TLS__NAME_ISSUERS',
    value: 'false',
    read: ({ listen }) => listen.tls?.advertiseIssuers,
    expected: false,
    write: (setting) => `listen: { tls: { ${TLS}, ${setting} } }`,
  },
  {
    former: 'tokens.remembered',
    current: 'tokens.cacheSize',
    variable: 'GATEHOUSE_TOKENS__REMEMBERED',
    value: '300',
    read: ({ tokens }) => tokens.cacheSize,
    expected: 300,
    write: (setting) => `listen: { behindTls: true }\ntokens: { ${setting} }`,
  },
  {
    former: 'directories.corp.ldap.remember',
    current: 'directories.corp.ldap.cacheLifetime',
    variable: 'GATEHOUSE_DIRECTORIES__CORP__LDAP__REMEMBER',
    value: '7s',
    read: ({ directories }) => directories['corp']?.ldap?.cacheLifetime,
    expected: 7,
    write: (setting) =>
      `listen: { behindTls: true }\ndirectories: { corp: { label: corp, ldap: { ${LDAP}, ${setting} } } }`,
  },
];

const lastName = (path: string): string => path.split('.').at(-1) ?? path;

function load(...[text, options]: Parameters<typeof loadText>): LoadedConfig {
  const result = loadText(text, options);
  if (!result.ok) throw new Error(JSON.stringify(result.problems));
  return result;
}

describe.each(RENAMED)(
  '$former, now $current',
  ({ former, current, variable, value, read, expected, write }) => {
    const message = `is deprecated and will be removed in the next release; write ${current} instead`;
    const empty = write('').replace(/, (?=\s*\})/g, '');

    test('is accepted in the file, with a warning that names the line', () => {
      const loaded = load(write(`${lastName(former)}: ${value}`));
      expect(read(loaded.settings)).toEqual(expected);
      expect(loaded.deprecations).toEqual([{ path: former, message, line: expect.any(Number) }]);
      expect(formatDeprecations(loaded)[0]).toMatch(
        new RegExp(`^${former}: is deprecated .*\\(line \\d+\\)$`),
      );
    });

    test('is accepted in the environment and in flags, with a warning that names them', () => {
      const fromEnvironment = load(empty, { env: { [variable]: value } });
      expect(read(fromEnvironment.settings)).toEqual(expected);
      expect(fromEnvironment.deprecations).toEqual([{ path: former, message, from: variable }]);
      const fromFlag = load(empty, { overrides: [`${former}=${value}`] });
      expect(read(fromFlag.settings)).toEqual(expected);
      expect(fromFlag.deprecations).toEqual([{ path: former, message, from: '--set' }]);
    });

    test('is logged', () => {
      const events: unknown[] = [];
      logDeprecations(load(empty, { env: { [variable]: value } }), {
        warn: (event, fields) => events.push({ event, ...fields }),
      });
      expect(events).toEqual([
        { event: 'setting_deprecated', setting: former, note: message, from: variable },
      ]);
    });

    test('is an error together with the current name, wherever each of them is set', () => {
      const both = expect.stringContaining(`is the former name of ${current}, and both are set`);
      const inFile = write(`${lastName(former)}: ${value}, ${lastName(current)}: ${value}`);
      expect(loadProblems(inFile)).toMatchObject([{ path: former, message: both }]);
      const currentInFile = write(`${lastName(current)}: ${value}`);
      expect(loadProblems(currentInFile, { env: { [variable]: value } })).toMatchObject([
        { path: former, message: both, from: variable },
      ]);
      const formerInFile = write(`${lastName(former)}: ${value}`);
      expect(loadProblems(formerInFile, { overrides: [`${current}=${value}`] })).toEqual([
        { path: former, message: both, line: expect.any(Number) },
      ]);
      const formerInEnvironment = { env: { [variable]: value }, overrides: [`${current}=${value}`] };
      expect(loadProblems(empty, formerInEnvironment)).toEqual([
        { path: former, message: both, from: variable },
      ]);
    });

    test('is reported with its former name when its value is invalid', () => {
      const [problem] = loadProblems(write(`${lastName(former)}: [x]`));
      expect(problem).toMatchObject({ path: current, from: former });
    });

    test('is listed in the reference as deprecated', () => {
      const row = renderReference()
        .split('\n')
        .find((line) => line.startsWith(`| \`${former.replace('.corp.', '.<name>.')}\` |`));
      expect(row).toContain(`Deprecated: use \`${lastName(current)}\`.`);
    });
  },
);

const FORMER_IN_FILE = 'listen: { behindTls: true, fastLane: false }\ntokens: { remembered: 300 }';

test('a former name in a group that an override replaces is no error', () => {
  const { settings } = load(FORMER_IN_FILE, { overrides: ['listen={ behindTls: true, fastPath: true }'] });
  expect(settings.listen.fastPath).toBe(true);
  const inEnvironment = { env: { GATEHOUSE_TOKENS: '{ cacheSize: 400 }' } };
  expect(load(FORMER_IN_FILE, inEnvironment).settings.tokens.cacheSize).toBe(400);
});

test('a former name in a group of an override is reported with its source', () => {
  const message = expect.stringContaining('is deprecated');
  const override = 'listen={ behindTls: true, fastLane: true }';
  expect(load('', { overrides: [override] }).deprecations).toEqual([
    { path: 'listen.fastLane', message, from: '--set' },
  ]);
  expect(loadProblems('', { overrides: [override.replace('fastLane: true', 'fastLane: 7')] })).toEqual([
    { path: 'listen.fastPath', message: 'must be true or false, and is 7', from: '--set' },
  ]);
  expect(loadProblems('', { overrides: [override, 'listen.fastPath=true'] })).toEqual([
    { path: 'listen.fastLane', message: expect.stringContaining('both are set'), from: '--set' },
  ]);
});

test('the source of a value in a group that an override replaces is the override', () => {
  const overrides = ['listen={ behindTls: true, fastPath: 7 }'];
  expect(loadProblems(FORMER_IN_FILE, { overrides })).toEqual([
    { path: 'listen.fastPath', message: 'must be true or false, and is 7', from: '--set' },
  ]);
});

test('the HTTP/2 server of Node is deprecated', () => {
  const write = (value: string): string => `listen: { behindTls: true, http2: ${value} }`;
  expect(formatDeprecations(load(write('node')))).toEqual([
    "listen.http2: node is deprecated: Node's HTTP/2 server will be removed in the next release; write true, or report what keeps you from it (line 1)",
  ]);
  for (const value of ['true', 'false']) expect(load(write(value)).deprecations).toEqual([]);
});

test('the current names have no warnings', () => {
  for (const { current, value, write } of RENAMED)
    expect(load(write(`${lastName(current)}: ${value}`)).deprecations).toEqual([]);
});

test('the JSON Schema accepts former names and marks them as deprecated', () => {
  // Strict: unknown keywords are errors.
  const validate = new Ajv2020({ strict: true }).compile(getJsonSchema());
  expect(validate({ listen: { fastLane: false } })).toBe(true);
  expect(validate({ listen: { fastLane: 7 } })).toBe(false);
  expect(getJsonSchema().properties?.['listen']?.properties?.['fastLane']).toMatchObject({
    type: 'boolean',
    deprecated: true,
  });
});

test('an unknown name is not corrected to a former one', () => {
  expect(loadProblems('listen: { behindTls: true, fastLan: true }')[0]?.message).not.toContain('fastLane');
});
