import { createHmac } from 'node:crypto';
import { existsSync, readFileSync, renameSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { runCommand } from '../support/command-in-process.ts';
import type { CommandResult } from '../support/command-line.ts';
import { scrape } from '../support/scrape.ts';
import {
  connect,
  createServeFolder,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';
import { startHttpReceiver } from './audit-receivers.ts';

const SECRET = 'a secret of twenty-four.';

describe('an administrative action, with two workers', () => {
  let folder: ServeFolder;
  let server: ServeProcess;
  let receiver: Awaited<ReturnType<typeof startHttpReceiver>>;
  beforeAll(async () => {
    receiver = await startHttpReceiver();
    folder = await createServeFolder((settings) => ({
      ...settings,
      listen: { ...settings.listen, workers: 2 },
      audit: { sink: 'file', file: 'audit.log' },
    }));
    server = await startServe(folder);
  });
  afterAll(async () => {
    await folder.remove();
    await receiver.close();
  });

  const grants = (...args: readonly string[]): Promise<CommandResult> =>
    runCommand([
      'grants',
      ...args,
      '--url',
      `http://127.0.0.1:${server.adminPort}`,
      '--token-file',
      folder.file('data/admin-token'),
    ]);
  const events = (name: string): Record<string, unknown>[] =>
    (existsSync(folder.file(name)) ? readFileSync(folder.file(name), 'utf8') : '')
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => JSON.parse(line) as Record<string, unknown>);
  const adminActions = (name: string) => events(name).filter(({ event }) => event === 'admin_action');
  /** Issues a grant, revokes it through the admin API, and returns its id. */
  const revokeGrant = async (): Promise<string> => {
    const client = connect(folder, server.port, folder.alice);
    await client.grant();
    client.close();
    const { grants: live } = JSON.parse((await grants('list', '--output', 'json')).stdout) as {
      grants: { id: string }[];
    };
    const { id = '' } = live[0] ?? {};
    expect(await grants('revoke', id)).toMatchObject({ code: 0, stderr: '' });
    return id;
  };

  test('is written to the audit file and counted, and not written to the log', async () => {
    const before = await scrape(server.adminPort);
    const id = await revokeGrant();
    await until('the action is in the file', () => adminActions('audit.log').length === 1);
    expect(adminActions('audit.log')[0]).toMatchObject({ audit: true, act: 'revoke_grant', grant: id });
    const after = await scrape(server.adminPort);
    expect(after.value('gatehouse_audit_events_total{event="admin_action"}')).toBe(1);
    expect(after.value('gatehouse_revocations_total')).toBe(before.value('gatehouse_revocations_total') + 1);
    expect(after.value('gatehouse_audit_pending')).toBe(0);
    expect(server.log.filter((line) => line.audit === true)).toEqual([]);
  });

  test('is written to a new file after the old one was renamed and SIGHUP was sent', async () => {
    renameSync(folder.file('audit.log'), folder.file('audit.log.1'));
    const moved = events('audit.log.1').length;
    server.signal('SIGHUP');
    // Each process reopens the file by itself, so actions are repeated until one is in the new file.
    await until('an action is in the new file', async () => {
      await revokeGrant();
      return adminActions('audit.log').length > 0;
    });
    expect(events('audit.log.1').length).toBeGreaterThanOrEqual(moved);
    expect(server.log.filter((line) => line.audit === true)).toEqual([]);
  });

  test('goes to a webhook that is configured at run time, signed, as do the events of the workers', async () => {
    const webhook = { url: `${receiver.url}/audit`, secret: SECRET };
    folder.configure((settings) => ({ ...settings, audit: { sink: 'webhook', webhook } }));
    await until(
      'the workers have been replaced',
      () => server.log.some(({ event }) => event === 'workers_restarted'),
      40,
    );
    const id = await revokeGrant();
    const delivered = (event: string) =>
      receiver.deliveries.filter(({ body }) =>
        (JSON.parse(body) as { events: Record<string, unknown>[] }).events.some(
          (entry) => entry['event'] === event && (entry['grant'] === undefined || entry['grant'] === id),
        ),
      );
    await until('both events are delivered', () =>
      ['admin_action', 'grant_issued'].every((event) => delivered(event).length > 0),
    );
    for (const { headers, body } of receiver.deliveries) {
      const time = String(headers['x-gatehouse-timestamp']);
      const mac = createHmac('sha256', SECRET).update(`${time}.${body}`).digest('hex');
      expect(headers['x-gatehouse-signature']).toBe(`v1=${mac}`);
    }
    expect(new Set(receiver.deliveries.map(({ headers }) => headers['x-gatehouse-delivery'])).size).toBe(
      receiver.deliveries.length,
    );
    expect(adminActions('audit.log').map(({ grant }) => grant)).not.toContain(id);
  });

  test('is written to the old sink if the new one cannot be opened, which is logged', async () => {
    const before = receiver.deliveries.length;
    folder.configure((settings) => ({ ...settings, audit: { sink: 'file', file: 'nowhere/audit.log' } }));
    await until(
      'the supervisor has logged it',
      () => server.log.some(({ event }) => event === 'audit_sink_reload_failed'),
      40,
    );
    const id = await revokeGrant();
    await until('the webhook has received the event', () =>
      receiver.deliveries.slice(before).some(({ body }) => body.includes(id) && body.includes('admin_action')),
    );
    expect(await server.stop()).toBe(0);
    expect(server.log.filter(({ event }) => event === 'audit_events_lost')).toEqual([]);
  });
});
