import { connect as connectTls } from 'node:tls';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import {
  type Client,
  connect,
  createServeFolder,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';
import { randomFrom } from './report.ts';

/** `kill -9` on the embedded store. */
export interface Kills {
  readonly kills: number;
  readonly clients: number;
  readonly seed: number;
}

/** Older grants are checked less and less often; a few of every age are refreshed at each restart. */
const CHECKED_AT_EACH_RESTART = 40;
const DEADLINE_SECONDS = 60;

/** What one client knows about its grant: the last refresh token that was acknowledged to it. */
interface Held {
  token: string;
  /** Presented token → every refresh token that was ever returned for it. */
  readonly successors: Map<string, Set<string>>;
}

const held = (token: string): Held => ({ token, successors: new Map() });

/** A response other than 200. Any other failure is a broken connection, after which the client tries again. */
class Refused extends Error {}

/** A client's rule: present the newest token; a lost response is asked for again. */
async function refreshOnce(client: Client, own: Held): Promise<void> {
  const presented = own.token;
  const reply = await client.refresh(presented);
  if (reply.status !== 200) throw new Refused(`${reply.status} ${reply.text}`);
  const next = String(reply.json['refresh_token']);
  own.successors.set(presented, (own.successors.get(presented) ?? new Set()).add(next));
  own.token = next;
}

const audits = (server: ServeProcess, event: string): number =>
  server.log.filter((line) => line.audit === true && line.event === event).length;

const grantOf = ({ token }: Held): string => token.split('.')[1] ?? '';

export function testKillNine({ kills, clients, seed }: Kills): void {
  let folder: ServeFolder;
  beforeAll(async () => {
    folder = await createServeFolder((settings) => ({
      ...settings,
      log: { level: 'info', access: { enabled: false } },
    }));
  });
  afterAll(() => folder?.remove());

  /** Sends a refresh whose response is never read; returns when it is stored. */
  async function loseResponse(server: ServeProcess, own: Held): Promise<void> {
    const body = JSON.stringify({ client_id: 'report-runner', refresh_token: own.token });
    const socket = connectTls({
      host: '127.0.0.1',
      servername: 'localhost',
      port: server.port,
      ca: folder.ca.pem,
    });
    onTestFinished(() => void socket.destroy());
    socket.on('error', () => {}).pause();
    socket.write(
      `POST /authsvc/Authorize/Token HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
    );
    const grant = grantOf(own);
    await until(
      'the refresh is stored',
      () => server.log.some((line) => line.event === 'grant_refreshed' && line['grant'] === grant),
      DEADLINE_SECONDS,
    );
  }

  test(`R13 S17 kill -9 under refresh load, ${kills} times: no acknowledged grant is lost, no token has two successors, and no client is punished for the crash`, async () => {
    const random = randomFrom(seed);
    const helds: Held[] = [];
    /** Grants made and acknowledged on the way, each checked again after later kills. */
    const made: Held[] = [];
    const total = { refreshes: 0, lost: 0, storedBeforeTheKill: 0 };
    const opened: Client[] = [];
    const clientOf = (server: ServeProcess): Client => {
      const client = connect(folder, server.port, folder.alice);
      opened.push(client);
      return client;
    };
    onTestFinished(() => {
      for (const client of opened) client.close();
    });

    for (let kill = 0; kill <= kills; kill += 1) {
      // With one process and with two workers in turn, on the same folder.
      const server = await startServe(folder, { set: [`listen.workers=${(kill % 2) + 1}`] });
      const checker = clientOf(server);
      while (helds.length < clients) helds.push(held((await checker.grant()).refresh_token));

      // First the retries: each client presents what it has, whether its last response was lost or not.
      const isLast = kill === kills;
      const recent = made.slice(-CHECKED_AT_EACH_RESTART / 2);
      const older = recent.flatMap(() => made[Math.floor(random() * made.length)] ?? []);
      for (const own of new Set([...helds, ...(isLast ? made : [...recent, ...older])])) {
        const presented = own.token;
        await refreshOnce(checker, own);
        if (!isLast) continue;
        // Each grant has one successor, however often it is asked for.
        expect((await checker.refresh(presented)).json['refresh_token']).toBe(own.token);
      }
      if (isLast) {
        await server.stop();
        total.storedBeforeTheKill += audits(server, 'refresh_retried') - helds.length - made.length;
        expect(audits(server, 'refresh_reuse')).toBe(0);
        break;
      }

      const spare = held((await checker.grant()).refresh_token);
      made.push(spare);
      const halt = new AbortController();
      const refusals: string[] = [];
      let acknowledged = 0;
      const run = async (step: (client: Client) => Promise<void>): Promise<void> => {
        const client = clientOf(server);
        try {
          for (; !halt.signal.aborted; acknowledged += 1) await step(client);
        } catch (error) {
          if (error instanceof Refused) refusals.push(error.message);
          else total.lost += 1;
        }
      };
      const load = [
        ...helds.map((own) => run((client) => refreshOnce(client, own))),
        run(async (client) => void made.push(held((await client.grant()).refresh_token))),
      ];
      await loseResponse(server, spare);
      const wanted = clients + Math.floor(random() * 4 * clients);
      await until('there is load', () => acknowledged >= wanted, DEADLINE_SECONDS);
      await server.kill();
      halt.abort();
      await Promise.all(load);
      total.refreshes += acknowledged;
      total.storedBeforeTheKill += audits(server, 'refresh_retried');
      expect(refusals).toEqual([]);
      expect(audits(server, 'refresh_reuse')).toBe(0);
      for (const client of opened.splice(0)) client.close();
    }

    const forks = [...helds, ...made]
      .flatMap(({ successors }) => [...successors.values()])
      .filter((successors) => successors.size > 1);
    expect(forks).toEqual([]);
    // At each kill, one response to a stored refresh was lost on purpose.
    expect(total.storedBeforeTheKill).toBeGreaterThanOrEqual(kills);
    console.info(
      `kill -9: ${kills} kills (seed ${seed}); ${total.refreshes} refreshes and grants acknowledged, ${total.lost} responses ` +
        `lost, ${total.storedBeforeTheKill} of them already stored; 0 grants lost, 0 forked, 0 clients punished`,
    );
  }, 1_800_000);
}
