import { globSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';
import { getJsonSchema, type JsonSchema } from '../../src/config/known-settings.ts';
import { renderReference } from '../../tools/configuration-page.ts';
import { GENERATED, pathOf } from '../../tools/docs.ts';
import { renderErrors } from '../../tools/errors-page.ts';

describe('generated files are up to date (npm run docs)', () => {
  test.each(GENERATED)('$file', async (generated) => {
    expect(readFileSync(pathOf(generated), 'utf8')).toBe(await generated.render());
  });
});

/** Every setting that has a value, with its path. */
function* listSettings(schema: JsonSchema, path: string): Generator<readonly [string, JsonSchema]> {
  for (const form of schema.anyOf ?? [schema]) {
    if (form.items) yield* listSettings(form.items, `${path}[]`);
    if (typeof form.additionalProperties === 'object') yield* listSettings(form.additionalProperties, `${path}.<name>`);
    for (const [name, inner] of Object.entries(form.properties ?? {})) {
      const place = path === '' ? name : `${path}.${name}`;
      const below = [...listSettings(inner, place)];
      if (below.length === 0) yield [place, inner];
      yield* below;
    }
  }
}

test('every setting is in the reference, with a description', () => {
  const reference = renderReference();
  const all = [...listSettings(getJsonSchema(), '')];
  expect(all.length).toBeGreaterThan(80);
  expect(all.filter(([, { description }]) => description === undefined).map(([path]) => path)).toEqual([]);
  expect(all.filter(([path]) => !reference.includes(`| \`${path}\` |`)).map(([path]) => path)).toEqual([]);
});

test('every row of the reference has four cells', () => {
  const rows = renderReference()
    .split('\n')
    .filter((line) => line.startsWith('| `'));
  expect(rows.filter((row) => row.replaceAll('\\|', '').split('|').length !== 6)).toEqual([]);
});

test('settings that are read at start are marked, and no others', () => {
  const rows = renderReference().split('\n');
  const isMarked = (setting: string): boolean | undefined =>
    rows.find((row) => row.startsWith(`| \`${setting}\` |`))?.includes('*Needs a restart');
  for (const setting of ['admin.hostNames', 'admin.tls.key', 'listen.port', 'store.url', 'audit.sink', 'log.level'])
    expect([setting, isMarked(setting)]).toEqual([setting, true]);
  for (const setting of ['publicUrl', 'hosts.allowed', 'listen.tls.key', 'limits.body', 'log.access.enabled'])
    expect([setting, isMarked(setting)]).toEqual([setting, false]);
});

test('every reason that can be logged is documented in docs/errors.md', () => {
  const page = renderErrors();
  const source = fileURLToPath(new URL('../../src/', import.meta.url));
  const noted = globSync('{admin,authsvc,http,listener,oauth,pages,proxy,server,x509}/**/*.ts', {
    cwd: source,
  }).flatMap((file) => {
    const text = readFileSync(`${source}${file}`, 'utf8');
    const given = [
      ...text.matchAll(/\bnote\(\{[^;{}]*\breason: ([^;{}]*)\}\)/g),
      ...text.matchAll(/\b(?:notes\.reason = |abandon\(|(?<!\.)fail\()('[a-z_]+')/g),
    ];
    return given.flatMap(([, texts = '']) =>
      [...texts.matchAll(/'([a-z]+(?:_[a-z]+)*)'/g)].map(([, reason = '']) => reason),
    );
  });
  expect(noted).toEqual(
    expect.arrayContaining(['not_a_navigation', 'no_such_endpoint', 'openid_refused', 'internal_error']),
  );
  const unwritten = new Set(noted.filter((reason) => !page.includes(`\`${reason}\``)));
  expect([...unwritten]).toEqual([]);
  for (const reason of ['token_malformed', 'token_certificate_rejected', 'ended: going_away'])
    expect(page).toContain(`\`${reason}\``);
});
