import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { Profile } from '../../../src/domain/user.ts';
import { bearer, type ProxyHarness, RULES, startProxyHarness } from '../../support/proxy-harness.ts';
import { rawRequest } from '../../support/raw-client.ts';
import { headerValues, type RecordingUpstream, startRecordingUpstream } from '../../support/recording-upstream.ts';

const NAMES = ['x-forwarded-preferred-username', 'x-mail', 'x-forwarded-groups'] as const;
const HEADERS = {
  user: 'X-Forwarded-User',
  clientId: 'X-Forwarded-Client-Id',
  scope: 'X-Forwarded-Scope',
  name: 'X-Forwarded-Preferred-Username',
  email: 'X-Mail',
  groups: 'X-Forwarded-Groups',
  cookie: '__Host-gatehouse',
};
const PROFILES = {
  plain: { name: 'alice', email: 'alice@example.test', groups: ['operators', 'readers'] },
  odd: { name: 'Bärbel 100%', email: ' x@y', groups: ['a,b', 'Straße', 'c'] },
  hostile: { name: 'a\r\nX-Forwarded-User: root', groups: ['a\nb'] },
  many: { name: 'alice', groups: Array.from({ length: 300 }, (_, index) => `group-number-${index}`) },
  none: undefined,
} satisfies Readonly<Record<string, Profile | undefined>>;

describe('the profile of a caller', () => {
  let upstream: RecordingUpstream;
  let proxy: ProxyHarness;
  beforeAll(async () => {
    upstream = await startRecordingUpstream();
    proxy = await startProxyHarness({
      upstream: upstream.url,
      headers: HEADERS,
      rules: RULES,
      tokens: Object.fromEntries(
        Object.entries(PROFILES).map(([name, profile]) => [name, bearer(profile && { profile })]),
      ),
    });
  });
  afterAll(async () => {
    await proxy.close();
    await upstream.close();
  });
  beforeEach(() => upstream.reset());

  const receive = async (token: keyof typeof PROFILES, path = '/files/1', fields: readonly string[] = []) => {
    const authorization = path.startsWith('/public') ? [] : [`Authorization: Bearer ${token}`];
    await rawRequest(
      proxy.port,
      [`GET ${path} HTTP/1.1`, `Host: 127.0.0.1:${proxy.port}`, ...authorization, ...fields, '\r\n'].join('\r\n'),
    );
    const [request] = upstream.requests;
    expect(request).toBeDefined();
    return NAMES.map((name) => headerValues(request, name));
  };

  test('sends name, e-mail address and groups of the token', async () => {
    expect(await receive('plain')).toEqual([['alice'], ['alice@example.test'], ['operators,readers']]);
  });

  test('percent-encodes what a header field cannot contain, and commas within a group', async () => {
    expect(await receive('odd')).toEqual([['B%C3%A4rbel 100%25'], ['%20x@y'], ['a%2Cb,Stra%C3%9Fe,c']]);
  });

  test('never lets a name end a header line', async () => {
    expect(await receive('hostile')).toEqual([['a%0D%0AX-Forwarded-User: root'], [], ['a%0Ab']]);
    expect(headerValues(upstream.requests[0], 'x-forwarded-user')).toEqual([bearer().identity]);
  });

  test('omits a list of groups that is too long', async () => {
    expect(await receive('many')).toEqual([['alice'], [], []]);
  });

  test.each(['/files/1', '/public/1'])('removes what the client sent, in every spelling: %s', async (path) => {
    const spoofed = NAMES.flatMap((name) => [
      `${name}: root`,
      `${name.toUpperCase()}: root`,
      `${name.replaceAll('-', '_')}: root`,
      `${name.replaceAll('-', '.')}: root`,
    ]);
    expect(await receive('none', path, spoofed)).toEqual([[], [], []]);
    expect(JSON.stringify(upstream.requests[0]?.headers)).not.toContain('root');
  });

  test('notes the name for the access log', async () => {
    await receive('plain');
    expect(proxy.notes.at(-1)).toMatchObject({ name: 'alice' });
    await receive('none');
    expect(proxy.notes.at(-1)?.name).toBeUndefined();
  });
});
