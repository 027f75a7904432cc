import { connect as connectTls } from 'node:tls';
import { afterAll, beforeAll, expect, onTestFinished, test } from 'vitest';
import { recordFigures } from '../support/figures.ts';
import {
  type Client,
  connect,
  createServeFolder,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';
import { isTooLateToRetry, randomFrom, withRetryWindow } from './support.ts';

/** `kill -9` with the embedded store. */
export interface Kills {
  readonly kills: number;
  readonly clients: number;
  readonly seed: number;
}

/** Each restart refreshes this many earlier grants: recent ones and a random selection. */
const CHECKED_AT_EACH_RESTART = 40;
const DEADLINE_SECONDS = 60;
/** The state of a client: the last refresh token it has received. */
interface ClientState {
  token: string;
  /** When the token was first presented, by `performance.now()`. */
  presentedAt: number | undefined;
  /** Presented token → every refresh token that was ever returned for it. */
  readonly successors: Map<string, Set<string>>;
}

const createState = (token: string): ClientState => ({
  token,
  presentedAt: undefined,
  successors: new Map(),
});

/** A response other than 200. Any other failure is a lost connection, after which the client retries. */
class Refused extends Error {}

/** Presents the newest token; after a lost response the same token is presented again. */
async function refreshOnce(client: Client, state: ClientState): Promise<void> {
  const presented = state.token;
  const firstPresentedAt = (state.presentedAt ??= performance.now());
  const reply = await client.refresh(presented);
  if (reply.status !== 200) {
    const seconds = Math.round((performance.now() - firstPresentedAt) / 1_000);
    throw new Refused(`${reply.status} ${reply.text}, ${seconds} s after the token was first presented`);
  }
  const next = String(reply.json['refresh_token']);
  state.successors.set(presented, (state.successors.get(presented) ?? new Set()).add(next));
  state.token = next;
  state.presentedAt = undefined;
}

const countAudits = (server: ServeProcess, event: string): number =>
  server.log.filter((line) => line.audit === true && line.event === event).length;

const getGrantId = ({ token }: ClientState): string => token.split('.')[1] ?? '';

export function testKillNine({ kills, clients, seed }: Kills): void {
  let folder: ServeFolder;
  beforeAll(async () => {
    folder = await createServeFolder((settings) =>
      withRetryWindow({ ...settings, log: { level: 'info', access: { enabled: false } } }),
    );
  });
  afterAll(() => folder?.remove());

  /** Sends a refresh whose response is never read; returns when it is stored. */
  async function loseResponse(server: ServeProcess, state: ClientState): Promise<void> {
    state.presentedAt = performance.now();
    const body = JSON.stringify({ client_id: 'report-runner', refresh_token: state.token });
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
    const grant = getGrantId(state);
    await until(
      'the refresh is stored',
      () => server.log.some((line) => line.event === 'grant_refreshed' && line['grant'] === grant),
      DEADLINE_SECONDS,
    );
  }

  test(`R13 S17 kill -9 under refresh load, ${kills} times: no acknowledged grant is lost, no token has two successors, and no retry is treated as reuse`, async () => {
    const random = randomFrom(seed);
    const states: ClientState[] = [];
    /** Grants created under load, checked again after later kills. */
    const createdStates: ClientState[] = [];
    const total = { refreshes: 0, lost: 0, storedBeforeTheKill: 0, tooLate: 0 };
    /** The one whose response was lost before the last kill. */
    let spare: ClientState | undefined;
    const openClients: Client[] = [];
    const createClient = (server: ServeProcess): Client => {
      const client = connect(folder, server.port, folder.alice);
      openClients.push(client);
      return client;
    };
    onTestFinished(() => {
      for (const client of openClients) client.close();
    });

    for (let kill = 0; kill <= kills; kill += 1) {
      // Alternately with one process and with two workers, on the same folder.
      const server = await startServe(folder, { set: [`listen.workers=${(kill % 2) + 1}`] });
      const checker = createClient(server);
      while (states.length < clients) states.push(createState((await checker.grant()).refresh_token));

      // First the retries: each client presents its newest token, whether or not its last response was lost.
      const isLast = kill === kills;
      const recent = createdStates.slice(-CHECKED_AT_EACH_RESTART / 2);
      const older = recent.flatMap(() => createdStates[Math.floor(random() * createdStates.length)] ?? []);
      const checked = isLast ? createdStates : [...recent, ...older];
      for (const state of new Set([...(spare ? [spare] : []), ...states, ...checked])) {
        if (isTooLateToRetry(state.presentedAt)) {
          total.tooLate += 1;
          state.token = (await checker.grant()).refresh_token;
          state.presentedAt = undefined;
        }
        const presented = state.token;
        await refreshOnce(checker, state);
        if (!isLast) continue;
        // Each token has one successor, however often it is presented.
        expect((await checker.refresh(presented)).json['refresh_token']).toBe(state.token);
      }
      if (isLast) {
        await server.stop();
        total.storedBeforeTheKill += countAudits(server, 'refresh_retried') - states.length - createdStates.length;
        expect(countAudits(server, 'refresh_reuse')).toBe(0);
        break;
      }

      spare = createState((await checker.grant()).refresh_token);
      createdStates.push(spare);
      const halt = new AbortController();
      const refusals: string[] = [];
      let acknowledged = 0;
      const run = async (step: (client: Client) => Promise<void>): Promise<void> => {
        const client = createClient(server);
        try {
          for (; !halt.signal.aborted; acknowledged += 1) await step(client);
        } catch (error) {
          if (error instanceof Refused) refusals.push(error.message);
          else total.lost += 1;
        }
      };
      const load = [
        ...states.map((state) => run((client) => refreshOnce(client, state))),
        run(async (client) => void createdStates.push(createState((await client.grant()).refresh_token))),
      ];
      await loseResponse(server, spare);
      const wantedCount = clients + Math.floor(random() * 4 * clients);
      await until('enough operations are acknowledged', () => acknowledged >= wantedCount, DEADLINE_SECONDS);
      await server.kill();
      halt.abort();
      await Promise.all(load);
      total.refreshes += acknowledged;
      total.storedBeforeTheKill += countAudits(server, 'refresh_retried');
      expect(refusals).toEqual([]);
      expect(countAudits(server, 'refresh_reuse')).toBe(0);
      for (const client of openClients.splice(0)) client.close();
    }

    const forks = [...states, ...createdStates]
      .flatMap(({ successors }) => [...successors.values()])
      .filter((successors) => successors.size > 1);
    expect(forks).toEqual([]);
    // At each kill, one response to a stored refresh was lost deliberately.
    expect(total.storedBeforeTheKill + total.tooLate).toBeGreaterThanOrEqual(kills);
    expect(total.tooLate).toBeLessThan(kills / 10);
    recordFigures('kills-embedded', {
      seed,
      kills,
      'refreshes and grants acknowledged': total.refreshes,
      'responses lost': total.lost,
      'of these already stored': total.storedBeforeTheKill,
      'grants lost': 0,
      'tokens with two successors': forks.length,
      'retries treated as reuse': 0,
      'not retried, because the machine was too slow': total.tooLate,
    });
  }, 1_800_000);
}
