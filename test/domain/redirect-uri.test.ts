import { describe, expect, test } from 'vitest';
import {
  addResponseParameters,
  describeRedirectUri,
  findRedirectUriProblem,
  getFormActionSource,
  matchesRedirectUri,
} from '../../src/domain/redirect-uri.ts';

describe('a redirect URI that can be registered', () => {
  test.each([
    'https://app.example.test/callback',
    'https://app.example.test',
    'https://app.example.test:8443/callback?from=gatehouse',
    'https://[2001:db8::1]/callback',
    'http://127.0.0.1/callback',
    'http://127.0.0.1:3000/callback',
    'http://[::1]:3000/callback',
    'http://localhost:6274/oauth/callback',
    'com.example.app:/callback',
    'com.example.app:callback',
    'com.example.app://callback',
  ])('%s', (uri) => {
    expect(findRedirectUriProblem(uri)).toBeUndefined();
  });
});

describe('a redirect URI that cannot be registered', () => {
  test.each([
    ['http://app.example.test/callback', /must be https/],
    ['http://127.0.0.1.example.test/callback', /must be https/],
    ['http://localhost.example.test/', /must be https/],
    ['http://127.0.0.1:0/callback', /must be https/],
    ['http://127.0.0.1:65536/callback', /must be https/],
    ['http://127.0.0.1@example.test/callback', /must be https/],
    ['http://0.0.0.0/callback', /must be https/],
    ['https://user@app.example.test/callback', /https URL/],
    ['https://user:password@app.example.test/', /https URL/],
    ['https://app.example.test/callback#part', /fragment/],
    ['https://*.example.test/callback', /wildcard/],
    ['https://app.example.test/*', /wildcard/],
    ['https:/app.example.test/callback', /https URL/],
    ['https:\\\\app.example.test', /ASCII/],
    ['HTTPS://app.example.test/callback', /https URL/],
    ['javascript:alert(1)', /https URL/],
    ['data:text/html,x', /https URL/],
    ['myapp:/callback', /https URL/],
    ['com.example.app:///callback', /https URL/],
    ['com.example.app:', /https URL/],
    ['/callback', /https URL/],
    ['', /https URL/],
    ['https://app.example.test/\u00fc', /ASCII/],
    ['https://app.example.test/a b', /ASCII/],
    ['https://app.example.test/"', /ASCII/],
    ['https://app.example.test/?code=1', /query parameter code/],
    ['https://app.example.test/?a=1&iss=x', /query parameter iss/],
    ['https://app.example.test:99999/', /not a valid URL/],
    [`https://app.example.test/${'a'.repeat(500)}`, /longer than 512/],
  ])('%s', (uri, problem) => {
    expect(findRedirectUriProblem(uri)).toMatch(problem);
  });
});

describe('redirect URIs are compared as strings, except for the port of loopback addresses', () => {
  test.each([
    ['https://app.example.test/callback', 'https://app.example.test/callback', true],
    ['https://app.example.test/callback', 'https://app.example.test/callback/', false],
    ['https://app.example.test/callback', 'https://app.example.test/callback?x=1', false],
    ['https://app.example.test/callback', 'https://app.example.test/Callback', false],
    ['https://app.example.test/callback', 'https://APP.example.test/callback', false],
    ['https://app.example.test/callback', 'https://app.example.test:443/callback', false],
    ['https://app.example.test/callback', 'https://app.example.test/x/../callback', false],
    ['https://app.example.test/callback', 'https://app.example.test/%63allback', false],
    ['https://app.example.test/callback', 'https://app.example.test.evil.test/callback', false],
    ['https://app.example.test/callback', 'http://app.example.test/callback', false],
    ['http://127.0.0.1/callback', 'http://127.0.0.1:51004/callback', true],
    ['http://127.0.0.1:3000/callback', 'http://127.0.0.1:51004/callback', true],
    ['http://[::1]/callback', 'http://[::1]:51004/callback', true],
    ['http://localhost/callback', 'http://localhost:51004/callback', true],
    ['http://127.0.0.1/callback', 'http://localhost:51004/callback', false],
    ['http://127.0.0.1/callback', 'http://[::1]:51004/callback', false],
    ['http://127.0.0.1/callback', 'http://127.0.0.1:51004/other', false],
    ['http://127.0.0.1/callback', 'http://127.0.0.1:51004/callback?x=1', false],
    ['http://127.0.0.1/callback', 'http://127.0.0.1:51004@evil.test/callback', false],
    ['http://127.0.0.1/callback', 'http://127.0.0.1:/callback', false],
    ['http://127.0.0.1/callback', 'http://127.0.0.1:080/callback', false],
    ['http://127.0.0.1/callback', 'http://127.0.0.1:65536/callback', false],
    ['http://127.0.0.1/callback', 'https://127.0.0.1/callback', false],
    ['http://127.0.0.1/callback', 'http://127.0.0.1.evil.test/callback', false],
    ['com.example.app:/callback', 'com.example.app:/callback', true],
    ['com.example.app:/callback', 'com.example.app:/callback2', false],
  ])('%s, requested as %s: %s', (registered, requested, expected) => {
    expect(matchesRedirectUri(registered, requested)).toBe(expected);
  });
});

test('an app is described by its host or scheme, and forms may lead to it', () => {
  expect(describeRedirectUri('https://app.example.test:8443/cb')).toEqual({
    kind: 'web',
    host: 'app.example.test:8443',
  });
  expect(describeRedirectUri('http://127.0.0.1:3000/cb')).toEqual({ kind: 'loopback' });
  expect(describeRedirectUri('com.example.app:/cb')).toEqual({ kind: 'app', scheme: 'com.example.app' });
  expect(getFormActionSource('https://app.example.test/cb')).toBe('https:');
  expect(getFormActionSource('http://[::1]:3000/cb')).toBe('http: https:');
  expect(getFormActionSource('com.example.app:/cb')).toBe('com.example.app:');
});

test('response parameters are added to the query that a redirect URI has', () => {
  expect(addResponseParameters('https://a.test', { code: 'x', state: 'a b&c' })).toBe(
    'https://a.test?code=x&state=a+b%26c',
  );
  expect(addResponseParameters('https://a.test/?b=1', { code: 'x' })).toBe('https://a.test/?b=1&code=x');
});
