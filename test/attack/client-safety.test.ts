import { expect, test } from 'vitest';
import { createClient } from '../../src/client/client.ts';
import { runGatehouse } from '../support/command-line.ts';

test('the client library sends a token over plain HTTP only to loopback addresses', () => {
  const terms = { url: 'https://api.example.test', clientId: 'report-runner', scope: 'files:read' };
  expect(() => createClient({ ...terms, origins: ['http://files.example.test'] })).toThrow(/https only/);
  expect(() => createClient({ ...terms, servicePath: '//elsewhere.example/authsvc' })).toThrow(/another origin/);
  expect(createClient({ ...terms, origins: ['http://127.0.0.1:8080'] }).isAllowedOrigin('http://127.0.0.1:8080')).toBe(
    true,
  );
});

test('a profile cannot have the name of the token file of another profile', async () => {
  const { code, stderr } = await runGatehouse(['logout', '--profile', 'default.token']);
  expect(code).toBe(64);
  expect(stderr).toContain('.token');
});
