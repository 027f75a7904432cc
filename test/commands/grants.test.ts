import { chmodSync, rmSync, writeFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { runCommand } from '../support/command-in-process.ts';
import type { CommandResult } from '../support/command-line.ts';
import { createCa, issue, issueServer } from '../support/pki.ts';
import {
  connect,
  createServeFolder,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';
import { ALICE } from '../support/test-gateway.ts';

describe('gatehouse grants, with two workers', () => {
  let folder: ServeFolder;
  let server: ServeProcess;
  const grants = (...args: readonly string[]): Promise<CommandResult> =>
    runCommand([
      'grants',
      ...args,
      '--url',
      `http://127.0.0.1:${server.adminPort}`,
      '--token-file',
      folder.file('data/admin-token'),
    ]);

  beforeAll(async () => {
    folder = await createServeFolder();
    server = await startServe(folder, {
      set: [
        'listen.workers=2',
        'trustedIssuers.corp.issuer=https://id.example.test',
        'trustedIssuers.corp.audience=files-api',
        'trustedIssuers.corp.jwksUri=http://127.0.0.1:1/keys',
      ],
    });
  });
  afterAll(() => folder.remove());

  test('lists, shows and revokes a grant, and every worker rejects it from then on', async () => {
    const client = connect(folder, server.port, folder.alice);
    try {
      const { access_token: token } = await client.grant();
      const listed = await grants('list', '--client', 'report-runner');
      expect(listed).toMatchObject({ code: 0, stderr: '' });
      const [head = '', row = ''] = listed.stdout.split('\n');
      expect(head.split(/ {2,}/)).toEqual([
        'grant',
        'client',
        'name',
        'identity',
        'scope',
        'by',
        'state',
        'last refreshed',
        'until',
      ]);
      expect(row).toContain(`report-runner  alice  ${ALICE}  files:read  certificate  live`);
      const [id = ''] = row.split(' ', 1);

      const shown = await grants('show', id);
      expect(shown.stdout).toMatch(/^state +live$/m);
      expect(JSON.parse((await grants('show', id, '--output', 'json')).stdout)).toMatchObject({ id });

      expect(await grants('revoke', id)).toMatchObject({ code: 0, stdout: `Revoked: ${id}\n` });
      for (let tries = 0; tries < 8; tries += 1) {
        const another = connect(folder, server.port);
        expect(await another.isAccepted(token)).toBe(false);
        another.close();
      }
      expect((await grants('list')).stdout).toBe('No grants.\n');
      expect((await grants('list', '--all')).stdout).toContain(`${id}  `);
      await until('the action is logged', () =>
        server.log.some(({ event, act }) => event === 'admin_action' && act === 'revoke_grant'),
      );
    } finally {
      client.close();
    }
  });

  test('revokes a token and a subject of a trusted issuer', async () => {
    const withIssuer = ['revoke', '--issuer', 'corp'];
    const token = await grants(...withIssuer, '--token-id', 'one');
    expect(token).toMatchObject({ code: 0, stdout: 'Revoked: the token one of corp.\n' });
    const unconfirmed = await grants(...withIssuer, '--subject', 'alice');
    expect(unconfirmed.code).toBe(64);
    expect(unconfirmed.stderr).toContain('of this subject; add --yes');
    const subject = await grants(...withIssuer, '--subject', 'alice', '--yes', '--output', 'json');
    expect(JSON.parse(subject.stdout)).toEqual({ ended: { identity: 'corp:alice' }, live_grants: 0 });
    for (const wrong of [
      ['revoke', '--token-id', 'one'],
      [...withIssuer, '--token-id', 'one', '--subject', 'alice', '--yes'],
      [...withIssuer, '--token-id', 'one', '--client', 'report-runner', '--yes'],
      ['revoke', 'some-grant', '--token-id', 'one', '--issuer', 'corp'],
      ['revoke', '--issuer', 'other', '--token-id', 'one'],
    ])
      expect((await grants(...wrong)).code, wrong.join(' ')).toBe(64);
  });

  test('revokes all grants of an identity only with --yes', async () => {
    const client = connect(folder, server.port, folder.alice);
    try {
      const { access_token: token } = await client.grant();
      const once = await grants('revoke', '--identity', ALICE);
      expect(once.code).toBe(64);
      expect(once.stderr).toContain('add --yes');
      expect(await client.isAccepted(token)).toBe(true);
      const unknown = await grants('revoke', '--identity', ALICE.toUpperCase(), '--yes');
      expect(unknown.stdout).toContain(
        'There was no live grant here; tokens from trusted issuers are not counted. If you expected a grant, check the name, or use --name for a user name.',
      );
      expect(unknown.stdout).not.toContain('Revoked');
      expect(await client.isAccepted(token)).toBe(true);
      const ended = await grants('revoke', '--identity', ALICE, '--yes');
      expect(ended.stdout).toContain(
        'Live grants revoked: 1.\nThey can obtain new grants unless the user is disabled (users[].disabled) or its access is removed.\n',
      );
      expect(await client.isAccepted(token)).toBe(false);

      const again = await client.grant();
      expect((await grants('revoke', '--name', 'alice')).stderr).toContain('of this user; add --yes');
      expect(await grants('revoke', '--name', 'nobody', '--yes')).toMatchObject({
        code: 64,
        stderr: expect.stringContaining('gatehouse: No user and no live grant has this name. Revoke users of a'),
      });
      expect(await grants('revoke', '--client', 'report-runer', '--yes')).toMatchObject({
        code: 64,
        stderr: 'gatehouse: No such integration.\n',
      });
      expect((await grants('revoke', '--name', 'alice', '--yes')).stdout).toContain(
        `Revoked: everything issued to identity ${ALICE} so far.`,
      );
      expect(await client.isAccepted(again.access_token)).toBe(false);
    } finally {
      client.close();
    }
  });

  test('accepts an integration added at run time, also while the configuration cannot be read', async () => {
    folder.configure((settings) => ({
      ...settings,
      integrations: [...(settings.integrations ?? []), { clientId: 'added-later', scope: 'files:read' }],
    }));
    expect(await grants('revoke', '--client', 'added-later', '--yes')).toMatchObject({ code: 0, stderr: '' });
    folder.write('gatehouse.yaml', 'nonsense: [');
    expect(await grants('revoke', '--client', 'added-later', '--yes')).toMatchObject({ code: 0, stderr: '' });
    expect((await grants('revoke', '--client', 'never-there', '--yes')).code).toBe(64);
  });

  test('a failure is reported in one line, with its own exit code', async () => {
    expect(await grants('show', 'nothing')).toMatchObject({
      code: 64,
      stderr: 'gatehouse: No grant has this id.\n',
    });
    // An id may begin with a dash, as options do.
    expect(await grants('show', '-bcdefghijklmnopqrstuv')).toMatchObject({
      stderr: 'gatehouse: No grant has this id.\n',
    });
    expect((await grants('revoke')).code).toBe(64);
    expect((await grants('delete')).code).toBe(64);
    writeFileSync(folder.file('wrong-token'), 'not the token at all\n');
    const wrong = ['--url', `http://127.0.0.1:${server.adminPort}`, '--token-file', folder.file('wrong-token')];
    expect(await runCommand(['grants', 'list', ...wrong])).toMatchObject({
      code: 77,
      stderr: `gatehouse: The token in ${folder.file('wrong-token')} is not the one in admin.tokenFile of the gatehouse at http://127.0.0.1:${server.adminPort}, or gatehouse rejects that file because other users can read it (its log then has admin_token_refused).\n`,
    });
    folder.configure((settings) => settings);
    const configured = ['--config', folder.file('gatehouse.yaml'), '--set', `admin.port=${server.adminPort}`];
    expect((await runCommand(['grants', 'list', ...configured, ...wrong.slice(2)])).stderr).toContain(
      `at http://127.0.0.1:${server.adminPort}, or gatehouse rejects that file because other users can read it (its log then has admin_token_refused). This address is from the configuration: if gatehouse was started with another port (--set, GATEHOUSE_ADMIN__PORT), pass --set admin.port=PORT here too.\n`,
    );
    chmodSync(folder.file('data/admin-token'), 0o644);
    const own = ['--config', folder.file('gatehouse.yaml'), '--set', `admin.port=${server.adminPort}`];
    expect(await runCommand(['grants', 'list', ...own])).toMatchObject({
      code: 77,
      stderr: `gatehouse: The admin token was rejected: admin.tokenFile: other users can read ${folder.file('data/admin-token')} (mode 644); run chmod 600, and replace the token if it may have been read\n`,
    });
    chmodSync(folder.file('data/admin-token'), 0o600);
    expect((await runCommand(['grants', 'list', ...own])).code).toBe(0);
    const unreachable = ['--url', 'http://127.0.0.1:1', '--token-file', folder.file('data/admin-token')];
    expect((await runCommand(['grants', 'list', ...unreachable])).code).toBe(69);
  });
});

describe('an admin listener with TLS', () => {
  let folder: ServeFolder;
  let server: ServeProcess;
  beforeAll(async () => {
    const operators = await createCa({ name: 'operators' });
    const outsider = await createCa({ name: 'strangers' });
    const [operator, other] = await Promise.all([
      issue(operators, { commonName: 'olga' }),
      issue(outsider, { commonName: 'eve' }),
    ]);
    folder = await createServeFolder((settings) => ({
      ...settings,
      admin: {
        port: 0,
        tls: { certificate: 'admin.pem', key: 'admin-key.pem', clientCa: 'operators.pem' },
      },
    }));
    const own = await issueServer(folder.ca);
    for (const [name, text] of [
      ['admin.pem', own.pem],
      ['admin-key.pem', own.keyPem],
      ['operators.pem', operators.pem],
      ['olga.pem', operator.pem],
      ['olga-key.pem', operator.keyPem],
      ['eve.pem', other.pem],
      ['eve-key.pem', other.keyPem],
    ] as const)
      folder.write(name, text);
    server = await startServe(folder);
  });
  afterAll(() => folder.remove());

  const listGrantsAs = (user: string): Promise<CommandResult> =>
    runCommand([
      'grants',
      'list',
      '--url',
      `https://localhost:${server.adminPort}`,
      '--cacert',
      folder.file('ca.pem'),
      '--cert',
      folder.file(`${user}.pem`),
      '--key',
      folder.file(`${user}-key.pem`),
    ]);

  test('accepts a certificate of its CA and rejects any other', async () => {
    expect(await listGrantsAs('olga')).toMatchObject({ code: 0, stdout: 'No grants.\n' });
    expect(await listGrantsAs('eve')).toMatchObject({ code: 77 });
    // A certificate that the gateway accepts for tokens does not give access to the admin API.
    folder.write('alice.pem', folder.alice.pem);
    folder.write('alice-key.pem', folder.alice.keyPem);
    expect(await listGrantsAs('alice')).toMatchObject({ code: 77 });
  });

  test('responds to health probes without a client certificate', async () => {
    const health = await runCommand(['health', '--url', `https://localhost:${server.adminPort}`]);
    expect(health).toMatchObject({ code: 0, stdout: 'ready\n' });
  });

  test('uses a renewed certificate without a restart, and keeps the old one if the new one cannot be used', async () => {
    const another = await createCa({ name: 'another' });
    const renewed = await issueServer(another);
    folder.write('another.pem', another.pem);
    folder.write('admin-key.pem', renewed.keyPem);
    folder.write('admin.pem', renewed.pem);
    const listGrantsTrusting = (ca: string): Promise<CommandResult> =>
      runCommand([
        'grants',
        'list',
        '--url',
        `https://localhost:${server.adminPort}`,
        '--cacert',
        folder.file(ca),
        '--token-file',
        folder.file('data/admin-token'),
      ]);
    await until(
      'the renewed certificate is presented',
      async () => (await listGrantsTrusting('another.pem')).code === 0,
      30,
    );
    rmSync(folder.file('admin.pem'));
    server.signal('SIGHUP');
    await until('the failed renewal is logged', () =>
      server.log.some(({ event }) => event === 'admin_tls_reload_failed'),
    );
    expect((await listGrantsTrusting('another.pem')).code).toBe(0);
  });
});
