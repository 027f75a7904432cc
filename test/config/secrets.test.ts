import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { loadProblems, loadText, MINIMAL_CONFIG, USER } from '../support/configuration.ts';

const HASH = '$argon2id$v=19$m=65536,t=3,p=1$c2FsdHNhbHRzYWx0c2FsdA$aGFzaGhhc2hoYXNoaGFzaGhhc2hoYXNoaGFzaGhhc2g';

describe('secrets', () => {
  const withUser = (more: string): string =>
    `${MINIMAL_CONFIG}directories: { a: { label: x, users: [{ ${USER}, ${more} }] } }`;

  test('a password hash may be in a separate file, which is watched too', () => {
    const result = loadText(withUser('passwordHashFile: hash.txt'), { files: { 'hash.txt': `${HASH}\n` } });
    expect(result.ok && result.settings.directories['a']?.users[0]?.passwordHash).toBe(HASH);
    expect(result.files.slice(0, 2)).toEqual(['gatehouse.yaml', 'hash.txt'].map((name) => join(result.folder, name)));
  });

  test('a missing, empty or duplicate secret is reported by the name of its setting', () => {
    const path = 'directories.a.users[0].passwordHashFile';
    expect(loadProblems(withUser('passwordHashFile: no.txt'))).toMatchObject([
      { path, message: expect.stringMatching(/does not exist/) },
    ]);
    expect(loadProblems(withUser('passwordHashFile: e.txt'), { files: { 'e.txt': '\n' } })).toMatchObject([
      { path, message: expect.stringMatching(/is empty/) },
    ]);
    expect(
      loadProblems(withUser(`passwordHash: "${HASH}", passwordHashFile: h.txt`), {
        files: { 'h.txt': HASH },
      }),
    ).toMatchObject([{ path, message: 'is set in addition to passwordHash; remove one of them' }]);
  });

  test('no problem message contains a secret, from any source', () => {
    const secret = 'hunter2-very-secret';
    const reported = [
      loadProblems(withUser(`passwordHash: ${secret}`)),
      loadProblems(withUser('passwordHash: ${PW}'), { env: { PW: secret } }),
      loadProblems(withUser('passwordHashFile: h.txt'), { files: { 'h.txt': secret } }),
      loadProblems(withUser('email: a@b'), {
        env: { GATEHOUSE_DIRECTORIES__A__USERS__0__PASSWORD_HASH: secret },
      }),
      loadProblems(withUser('email: a@b'), {
        overrides: [`directories.a.users[0].passwordHash=${secret}`, `=${secret}`, secret],
      }),
      loadProblems(`${MINIMAL_CONFIG}integrations: [{ clientId: a, scope: "\${S}" }]`, {
        env: { S: secret.toUpperCase() + ';;' },
      }),
      loadProblems(`${MINIMAL_CONFIG}upstreams: { default: { url: "ftp://user:${secret}@host" } }`),
      loadProblems(`${MINIMAL_CONFIG}trustedProxies: "\${S}"`, { env: { S: secret } }),
    ];
    for (const problems of reported) expect(problems.length).toBeGreaterThan(0);
    expect(JSON.stringify(reported).toLowerCase()).not.toContain(secret);
  });

  test('a schema error of a secret from a file names the setting of the file', () => {
    const [problem] = loadProblems(withUser('passwordHashFile: h.txt'), { files: { 'h.txt': 'plain' } });
    expect(problem).toMatchObject({
      path: 'directories.a.users[0].passwordHash',
      from: 'directories.a.users[0].passwordHashFile',
      message: expect.stringMatching(/must be the output of `gatehouse hash-password`/),
    });
  });
});
