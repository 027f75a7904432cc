import { expect, onTestFinished, test } from 'vitest';
import { runCommand } from '../support/command-in-process.ts';
import { type Reply, sendRequest } from '../support/https-client.ts';
import { createCa, createCrl, type IssuedCertificate, issue, issueServer } from '../support/pki.ts';
import { createServeFolder, type ServeFolder, type ServeProcess, startServe, until } from '../support/serve-process.ts';
import { reload } from './reload-under-load.ts';

const daysFromNow = (count: number): Date => new Date(Date.now() + count * 86_400_000);
const EXPIRED = { notBefore: daysFromNow(-9), notAfter: daysFromNow(-1) };

async function createFolder(): Promise<ServeFolder> {
  const folder = await createServeFolder();
  onTestFinished(() => folder.remove());
  return folder;
}

/** Requests a grant as a client that does not verify the certificate of the server. */
const authorize = async ({ port }: ServeProcess, as: IssuedCertificate): Promise<Reply> =>
  sendRequest({
    port,
    method: 'POST',
    path: '/authsvc/Authorize/Certificate',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ client_id: 'report-runner', scope: 'files:read' }),
    cert: as.pem,
    key: as.keyPem,
    rejectUnauthorized: false,
  });

const findProblems = ({ log }: ServeProcess): unknown[] =>
  log.filter(({ event }) => event === 'certificate_expired').map(({ level, problem }) => [level, problem]);

async function writeExpiredServer(folder: ServeFolder): Promise<void> {
  const { pem, keyPem } = await issueServer(folder.ca, EXPIRED);
  folder.write('server-key.pem', keyPem);
  folder.write('server.pem', pem);
}

test('an expired server certificate is reported, and prevents neither the start nor a revocation', async () => {
  const folder = await createFolder();
  await writeExpiredServer(folder);
  folder.write('ca.crl', (await createCrl(folder.ca)).pem);
  folder.configure((settings) => ({
    ...settings,
    certificates: { ...settings.certificates, crls: ['ca.crl'] },
  }));
  const problem = expect.stringMatching(
    /^listen\.tls\.certificate: \/.*server\.pem expired on .*; clients reject connections: .* \(line \d+\)$/,
  );
  const server = await startServe(folder);
  expect(findProblems(server)).toEqual([['error', problem]]);
  expect((await authorize(server, folder.alice)).status).toBe(200);

  const { pem } = await createCrl(folder.ca, { revoked: [folder.alice] });
  await reload(server, () => void folder.write('ca.crl', pem), 'reloaded');
  expect((await authorize(server, folder.alice)).status).toBe(401);
  expect(findProblems(server).length).toBeGreaterThan(1);

  const { code, stderr } = await runCommand(['check', '-c', folder.file('gatehouse.yaml')]);
  expect(code).toBe(0);
  expect(stderr).toMatch(/^warning: listen\.tls\.certificate: .*server\.pem expired on .*\(line \d+\)$/m);
});

test('a valid server certificate is not replaced by an expired one, and the rest of the reload is applied', async () => {
  const folder = await createFolder();
  const server = await startServe(folder);
  const connectVerified = () => sendRequest({ port: server.port, path: '/authsvc/x', ca: folder.ca.pem });
  const change = async (): Promise<void> => {
    await writeExpiredServer(folder);
    folder.write('ca.crl', (await createCrl(folder.ca, { revoked: [folder.alice] })).pem);
    folder.configure((settings) => ({
      ...settings,
      certificates: { ...settings.certificates, crls: ['ca.crl'] },
    }));
  };
  await reload(server, change, 'reloaded');
  await until('the list is applied', async () => (await authorize(server, folder.alice)).status === 401);
  expect((await connectVerified()).status).toBe(404);
  expect(findProblems(server).at(-1)).toEqual([
    'error',
    expect.stringMatching(
      /server\.pem expired on .*; this process uses the previous certificate until it is restarted: replace the file/,
    ),
  ]);
  // After a restart there is no previous one.
  await server.stop();
  const restarted = await startServe(folder);
  expect(findProblems(restarted)).toMatchObject([['error', expect.stringContaining('clients reject connections')]]);
});

test('client certificates of an expired or future CA are refused, after a start and after a reload', async () => {
  const folder = await createFolder();
  const expiredCa = await createCa({ name: 'expired', ...EXPIRED });
  const futureCa = await createCa({ name: 'future', notBefore: daysFromNow(1) });
  const clients = [await issue(expiredCa, { commonName: 'alice' }), await issue(futureCa, { commonName: 'alice' })];
  folder.write('expired.pem', expiredCa.pem);
  folder.write('future.pem', futureCa.pem);
  folder.configure((settings) => ({
    ...settings,
    certificates: { ...settings.certificates, issuers: ['ca.pem', 'expired.pem', 'future.pem'] },
  }));
  const server = await startServe(folder);
  expect(findProblems(server)).toEqual([
    ['error', expect.stringMatching(/^certificates\.issuers\[1\]: .*expired\.pem expired on .*\(line \d+\)$/)],
    ['error', expect.stringMatching(/^certificates\.issuers\[2\]: .*future\.pem is not valid before/)],
  ]);
  const expectRefusals = async (): Promise<void> => {
    for (const client of clients) {
      const { status, json } = await authorize(server, client);
      expect([status, json['access_token']]).toEqual([401, undefined]);
    }
    expect((await authorize(server, folder.alice)).status).toBe(200);
  };
  await expectRefusals();
  const change = (): void =>
    folder.configure((settings) => ({ ...settings, tokens: { ...settings.tokens, accessLifetime: '5m' } }));
  await reload(server, change, 'reloaded');
  await expectRefusals();
});

test('expired certificates of outgoing connections are reported with their setting', async () => {
  const folder = await createFolder();
  const expired = await issueServer(folder.ca, EXPIRED);
  folder.write('old-ca.pem', (await createCa(EXPIRED)).pem);
  folder.write('client.pem', expired.pem);
  folder.write('client-key.pem', expired.keyPem);
  folder.configure((settings) => ({
    ...settings,
    upstreams: {
      ...settings.upstreams,
      other: {
        url: 'https://127.0.0.1:9',
        ca: 'old-ca.pem',
        certificate: 'client.pem',
        key: 'client-key.pem',
      },
    },
  }));
  const server = await startServe(folder);
  expect(findProblems(server)).toEqual([
    [
      'error',
      expect.stringMatching(/^upstreams\.other\.ca: .*old-ca\.pem expired on .*fail: replace it \(line \d+\)$/),
    ],
    ['error', expect.stringMatching(/^upstreams\.other\.certificate: .*client\.pem expired on .*\(line \d+\)$/)],
  ]);
});

test('start failures and rejected reloads name setting, file and line as `gatehouse check` does', async () => {
  const folder = await createFolder();
  const server = await startServe(folder);
  await reload(
    server,
    () =>
      folder.configure((settings) => ({
        ...settings,
        listen: { ...settings.listen, tls: { certificate: 'missing.pem', key: 'server-key.pem' } },
      })),
    'reload_rejected',
  );
  const config = folder.file('gatehouse.yaml');
  const checked = await runCommand(['check', '-c', config, '--output', 'json']);
  const [problem] = (JSON.parse(checked.stdout) as { problems: { path: string; message: string; line: number }[] })
    .problems;
  const text = `listen.tls.certificate: ${folder.file('missing.pem')} does not exist (line ${problem?.line})`;
  expect(problem).toMatchObject({
    path: 'listen.tls.certificate',
    message: `${folder.file('missing.pem')} does not exist`,
  });
  expect(server.log.findLast(({ event }) => event === 'reload_rejected')).toMatchObject({ problems: [text] });

  folder.configure((settings) => ({ ...settings, listen: { port: 'x' } as never }));
  server.signal('SIGHUP');
  const rejected = await until('the invalid port is reported', () =>
    server.log.find(
      ({ event, problems }) => event === 'reload_rejected' && JSON.stringify(problems).includes('listen.port'),
    ),
  );
  expect(rejected).toMatchObject({
    problems: expect.arrayContaining([expect.stringMatching(/^listen\.port: must be .*\(line \d+\)$/)]),
  });
});

test.each([1, 2])('a start failure with %i processes names setting and line once', async (workers) => {
  const folder = await createFolder();
  const error = await startServe(folder, {
    set: ['certificates.issuers=[missing.pem]', `listen.workers=${workers}`],
  }).catch((reason: unknown) => reason);
  expect(String(error)).toContain(
    `certificates.issuers[0]: ${folder.file('missing.pem')} does not exist (from --set)\n`,
  );
});
