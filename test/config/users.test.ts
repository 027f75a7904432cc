import { expect, test } from 'vitest';
import { loadProblems, loadValid, MINIMAL_CONFIG } from '../support/configuration.ts';

const LDAP = 'bindDn: "cn=g,dc=x", password: secret, base: "dc=x"';
const ldap = (more: string): string => `directories: { corp: { label: corp, ldap: { ${LDAP}, ${more} } } }`;
const OPENID = 'title: Login, issuer: "https://login.example.test", clientId: g';
const provider = (more: string, derive = false): string =>
  `directories: { corp: { label: corp, derive: ${derive} } }\nsignIn: { openid: { works: { ${OPENID}, ${more} } } }`;

/** A configuration with one problem, its path, and the message. */
const WRONG: readonly (readonly [text: string, path: string, words: RegExp])[] = [
  [ldap('url: "ldap://ldap.example.test"'), 'directories.corp.ldap.url', /in clear text/],
  [ldap('url: "ldaps://a", startTls: true'), 'directories.corp.ldap.startTls', /no effect/],
  [ldap('url: "http://a"'), 'directories.corp.ldap.url', /must be ldap:/],
  [ldap('url: "ldaps://user:pw@a"'), 'directories.corp.ldap.url', /must be ldap:/],
  [ldap('url: "ldaps://a/dc=x"'), 'directories.corp.ldap.url', /must be ldap:/],
  [ldap('url: "ldaps://a", filter: objectClass=person'), 'directories.corp.ldap.filter', /in parentheses/],
  [
    ldap('url: "ldaps://a", attributes: { userName: "uid)(x" }'),
    'directories.corp.ldap.attributes.userName',
    /attribute name/,
  ],
  [ldap('url: "ldaps://a", timeout: 5m'), 'directories.corp.ldap.timeout', /from 1s to 60s/],
  [
    'directories: { corp: { label: corp, ldap: { url: "ldaps://a", bindDn: "cn=g", base: "dc=x" } } }',
    'directories.corp.ldap.password',
    /is missing/,
  ],
  [
    'directories: { corp: { label: corp, derive: true, ldap: { url: "ldaps://a", bindDn: "cn=g", password: p, base: "dc=x" } } }',
    'directories.corp.ldap',
    /cannot be combined with/,
  ],
  [provider('directory: nowhere, means: userName'), 'signIn.openid.works.directory', /no such directory/],
  [provider('directory: corp'), 'signIn.openid.works.means', /cannot be subject/],
  [provider('directory: corp, means: email', true), 'signIn.openid.works.means', /must be subject/],
  [provider('directory: corp, means: userName, scope: profile'), 'signIn.openid.works.scope', /begin with openid/],
  [provider('directory: corp, means: userName, prompt: none'), 'signIn.openid.works.prompt', /login/],
  [
    provider('directory: corp, means: userName').replace('https://login', 'http://login'),
    'signIn.openid.works.issuer',
    /https/,
  ],
  [
    provider('directory: corp, means: userName').replace('works:', 'Works:'),
    'signIn.openid.Works',
    /lower-case letters/,
  ],
  [
    'directories: { a: { label: x, users: [{ name: alice, id: a-1 }] } }\nintegrations: [{ clientId: c, scope: "f:read", access: [{ identities: ["x:a-2"] }] }]',
    'integrations[0].access[0].identities[0]',
    /"a-2" is neither a braced GUID, nor a hex string, nor the id of a user/,
  ],
  ['pages: { accent: blue }', 'pages.accent', /such as #1d5bb8/],
  ['pages: { language: it }', 'pages.language', /en, de, es or fr|"en".*"fr"/],
  ['pages: { links: [{ text: Help, url: "javascript:alert(1)" }] }', 'pages.links[0].url', /must be an http/],
  ['pages: { links: [{ text: {}, url: "https://a" }] }', 'pages.links[0].text', /must have a text/],
  ['pages: { permissions: { "reports:read,write": x } }', 'pages.permissions', /it must be a resource/],
  ['pages: { permissions: { "reports:read;files": x } }', 'pages.permissions', /it must be a resource/],
];

test.each(WRONG)('%s', (text, path, words) => {
  const found = loadProblems(`${MINIMAL_CONFIG}\n${text}`);
  expect(found.map((problem) => problem.path).join(' ')).toContain(path);
  expect(found.map((problem) => problem.message).join(' ')).toMatch(words);
});

test('valid users are loaded', () => {
  const settings = loadValid(
    `${MINIMAL_CONFIG}\n${ldap('url: "ldap://127.0.0.1:389", passwordFile: secret').replace('password: secret, ', '')}\npages: { permissions: { "reports:read": see your reports, files: { de: Dateien } } }`,
    { files: { secret: 'from a file\n' } },
  );
  expect(settings.directories['corp']?.ldap).toMatchObject({
    url: ['ldap://127.0.0.1:389'],
    password: 'from a file',
    id: 'entryUUID',
    timeout: 5,
    cacheLifetime: 30,
  });
  expect(settings.pages.permissions).toEqual({
    'reports:read': { en: 'see your reports' },
    files: { de: 'Dateien' },
  });
});
