import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { ACCESS_FIELDS } from '../../src/observability/access-fields.ts';
import { createDeviceClient } from '../support/device-client.ts';
import { connectRawTls } from '../support/raw-client.ts';
import { scrape } from '../support/scrape.ts';
import { connect, createServeFolder, until } from '../support/serve-process.ts';
import { ALICE, type LogLine, startGateway, type TestGateway } from '../support/test-gateway.ts';

let gateway: TestGateway;
beforeAll(async () => {
  gateway = await startGateway();
});
afterAll(() => gateway.close());

const waitForLine = (of: TestGateway, path: string): Promise<LogLine> =>
  until(`${path} is logged`, () => of.log.find((line) => line.event === 'request' && line['path'] === path));

describe('the access log line', () => {
  test('has the identity, grant, client, rule, decision, duration and sizes', async () => {
    const { access_token: token } = await gateway.grant();
    const { headers } = await gateway.api('/files/one?secret=hush', token, {
      headers: { traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01' },
    });
    const line = await waitForLine(gateway, '/files/one');
    const issued = gateway.auditEvents('grant_issued').at(-1);
    expect(line).toMatchObject({
      level: 'info',
      request_id: headers['x-request-id'],
      trace_id: '0af7651916cd43dd8448eb211c80319c',
      from: '127.0.0.1',
      method: 'GET',
      status: 200,
      decision: 'forwarded',
      identity: ALICE,
      client: 'report-runner',
      grant: issued?.['grant'],
      upstream: 'default',
      bytes_in: 0,
    });
    expect(String(line['rule'])).toMatch(/^routes\[\d+\] \/files/);
    expect(line['ms']).toBeGreaterThan(0);
    expect(line['upstream_ms']).toBeGreaterThan(0);
    expect(Number(line['upstream_ms'])).toBeLessThanOrEqual(Number(line['ms']) + 1);
    expect(line['bytes_out']).toBeGreaterThan(10);
    expect(gateway.logLines.find((text) => text.includes('/files/one'))).not.toContain('hush');
    expect(Object.keys(line).filter((name) => !(name in ACCESS_FIELDS))).toEqual([]);
    // The log agrees with the headers sent to the upstream.
    expect(gateway.upstream.requests.at(-1)?.headers['traceparent']).toContain(line['trace_id']);
  });

  test('has the size of the body, and a new trace id if the request had none', async () => {
    const { access_token: token } = await gateway.grant({ scope: 'reports:read,write' });
    await gateway.api('/reports/new', token, {
      method: 'POST',
      body: 'x'.repeat(70_000),
      headers: { 'content-type': 'text/plain' },
    });
    const line = await waitForLine(gateway, '/reports/new');
    expect(line).toMatchObject({ status: 200, bytes_in: 70_000 });
    expect(String(line['trace_id'])).toMatch(/^[0-9a-f]{32}$/);
    expect(gateway.upstream.requests.at(-1)?.headers['traceparent']).toContain(line['trace_id']);
  });

  test('L01 a token at the place where a long path is cut is not logged', async () => {
    const token = 'Q'.repeat(62);
    const begin = '/files/long-';
    for (const kept of [30, 62, 63]) {
      const path = `${begin}${'-'.repeat(512 - begin.length - kept)}${token}==/x?q=1`;
      const { headers } = await gateway.api(path);
      const line = await until('it is logged', () =>
        gateway.log.find((entry) => entry.event === 'request' && entry['request_id'] === headers['x-request-id']),
      );
      expect(line['path']).toMatch(/^\/files\/long-{400,}/);
      expect(line['path']).not.toContain('QQ');
      expect(String(line['path']).length).toBeLessThanOrEqual(512);
    }
  });

  test('does not call it a refusal that a device must continue to poll', async () => {
    const device = createDeviceClient(gateway);
    const { device_code: code } = await device.requestCodes();
    const { headers } = await device.exchange(code);
    const line = await until('it is logged', () =>
      gateway.log.find((entry) => entry.event === 'request' && entry['request_id'] === headers['x-request-id']),
    );
    expect(line).toMatchObject({ status: 400, decision: 'handled', reason: 'device_pending' });
  });

  test('has the reason of a rejection', async () => {
    await gateway.api('/files/two');
    expect(await waitForLine(gateway, '/files/two')).toMatchObject({
      status: 401,
      decision: 'refused',
      reason: 'token_missing',
    });
  });

  test.each([
    ['GET', '/authsvc/Authorize/Nothing', 404, 'no_such_endpoint'],
    ['PUT', '/authsvc/Revoke/Token', 405, 'method_not_allowed'],
    ['POST', '/authsvc/oauth2/nothing', 404, 'no_such_endpoint'],
    ['GET', '/authsvc/oauth2/token', 405, 'method_not_allowed'],
    ['POST', '/.well-known/oauth-authorization-server', 405, 'method_not_allowed'],
  ])('has the decision on %s %s: %i', async (method, path, status, reason) => {
    await gateway.request({ method, path });
    expect(await waitForLine(gateway, path)).toMatchObject({ status, decision: 'refused', reason });
  });

  test('L01 L03 is one line of JSON without secrets for any input', async () => {
    const { access_token: token } = await gateway.grant();
    const from = gateway.logLines.length;
    await gateway.api(`/files/${token}/%22%0a%1b[31m`, token);
    await gateway.api(`/files/${encodeURIComponent('"}\n{"event":"forged"}')}`, token);
    await until(
      'both lines',
      () =>
        gateway.logLines.slice(from).filter((line) => line.includes('"event":"request"') && line.includes('"/files/'))
          .length >= 2,
    );
    expect(gateway.logLines.every((line) => line.endsWith('\n') && line.indexOf('\n') === line.length - 1)).toBe(true);
    expect(gateway.logLines.some((line) => line.includes(token.slice(20, 60)))).toBe(false);
    expect(gateway.log.some(({ event }) => event === 'forged')).toBe(false);
  });
});

describe('privacy', () => {
  let quiet: TestGateway;
  beforeAll(async () => {
    quiet = await startGateway((settings) => ({
      ...settings,
      log: {
        level: 'info',
        access: {
          exclude: ['path', 'grant', 'trace_id'],
          pseudonymise: ['identity', 'from'],
          pseudonymKey: 'a key of sixteen characters',
        },
      },
    }));
  });
  afterAll(() => quiet.close());

  test('omits excluded fields, and contains stable keyed digests of identity and address', async () => {
    const { access_token: token } = await quiet.grant();
    await quiet.api('/files/one', token);
    await quiet.api('/files/two', token);
    const lines = await until('two lines are logged', () => {
      const found = quiet.log.filter((line) => line.event === 'request' && line['decision'] === 'forwarded');
      return found.length === 2 && found;
    });
    for (const line of lines) for (const name of ['path', 'grant', 'trace_id']) expect(line).not.toHaveProperty(name);
    const [identity] = new Set(lines.map((line) => line['identity']));
    expect(identity).toMatch(/^~[A-Za-z0-9_-]{22}$/);
    expect(lines[1]?.['identity']).toBe(identity);
    expect(lines[0]?.['from']).toMatch(/^~[A-Za-z0-9_-]{22}$/);
    expect(lines[0]?.['from']).not.toBe(identity);
    expect(quiet.logLines.filter((text) => text.includes('"request"')).some((text) => text.includes('127.0.0.1'))).toBe(
      false,
    );
  });

  test('applies changes at a reload: another key yields other digests, and no line is written if disabled', async () => {
    const { access_token: token } = await quiet.grant();
    const line = async (path: string): Promise<LogLine> => {
      const from = quiet.log.length;
      await quiet.api(path, token);
      return until('a line is logged', () => quiet.log.slice(from).find(({ event }) => event === 'request'));
    };
    const before = await line('/files/a');
    await quiet.reload((settings) => ({
      ...settings,
      log: { ...settings.log, access: { pseudonymise: ['identity'], pseudonymKey: 'quite another key' } },
    }));
    const after = await line('/files/b');
    expect(after).toMatchObject({ path: '/files/b', from: '127.0.0.1' });
    expect(after['identity']).not.toBe(before['identity']);
    await quiet.reload((settings) => ({ ...settings, log: { level: 'info', access: { enabled: false } } }));
    const from = quiet.log.length;
    await quiet.api('/files/c', token);
    await quiet.reload((settings) => ({ ...settings, log: { level: 'info', access: { enabled: true } } }));
    await line('/files/d');
    expect(quiet.log.slice(from).filter(({ event }) => event === 'request').length).toBe(1);
  });

  test('a configuration with digests and without a key is rejected', async () => {
    await expect(
      startGateway((settings) => ({ ...settings, log: { access: { pseudonymise: ['from'] } } })),
    ).rejects.toThrow('log.access.pseudonymKey');
  });
});

test('if the log reader stops reading, lines are dropped and counted, and no request waits', async () => {
  const folder = await createServeFolder();
  onTestFinished(() => folder.remove());
  const main = join(import.meta.dirname, '../../src/main.ts');
  const args = [main, 'serve', '--config', folder.file('gatehouse.yaml')];
  const child = spawn(process.execPath, args, { cwd: folder.path, stdio: ['ignore', 'pipe', 'inherit'] });
  const ended = once(child, 'close');
  onTestFinished(async () => {
    child.kill('SIGKILL');
    child.stdout.resume();
    await ended;
  });
  const lines: LogLine[] = [];
  const reader = createInterface({ input: child.stdout });
  reader.on('line', (text) => void lines.push(JSON.parse(text) as LogLine));
  const ready = await until('the process is ready', () => lines.find(({ event }) => event === 'ready'), 60);
  child.stdout.pause();
  const [port, adminPort] = [Number(ready['port']), Number(ready['admin_port'])];
  const readLostCount = async (): Promise<number> =>
    (await scrape(adminPort)).value('gatehouse_log_lines_dropped_total');
  // Pipelined on one connection, each with a log line of maximum length.
  const request = `GET /${'x'.repeat(500)} HTTP/1.1\r\nHost: localhost\r\n\r\n`;
  const client = await connectRawTls(port, folder.ca.pem);
  onTestFinished(() => client.destroy());
  const countResponses = (): number => client.text().split('HTTP/1.1 401').length - 1;
  let requestCount = 0;
  await until(
    'lines are dropped',
    async () => {
      requestCount += 500;
      client.send(request.repeat(500));
      await until('all requests got a response', () => countResponses() === requestCount, 30);
      return (await readLostCount()) > 0;
    },
    50,
  );
  // Logging continues as soon as the log is read, and the loss is reported.
  child.stdout.resume();
  const another = connect(folder, port);
  onTestFinished(() => another.close());
  const report = await until(
    'the loss is reported',
    async () => {
      await another.request({ path: '/again' });
      return lines.find(({ event }) => event === 'log_lines_lost');
    },
    30,
  );
  expect(Number(report['lines'])).toBeGreaterThan(0);
});
