import { afterAll, expect, test } from 'vitest';
import {
  type Client,
  connect,
  makeServeFolder,
  type ServeProcess,
  startServe,
} from '../support/serve-process.ts';
import { count, randomFrom } from './form.ts';

/** On the embedded store. `npm run test:kill` sets this to 50. */
const KILLS = count('KILLS', 6, 50);
const SEED = Number(process.env['SEED'] ?? 20_260_131);
const CLIENTS = 24;
/** Older ones are looked at less and less often; a few of every age are asked at each restart. */
const LOOKED_AT_EACH_RESTART = 40;

const folder = await makeServeFolder((settings) => ({
  ...settings,
  log: { level: 'info', access: { enabled: false } },
}));
afterAll(() => folder.remove());

/** What one client knows about its grant: the last refresh token that was acknowledged to it. */
interface Held {
  token: string;
  /** Presented token → every refresh token that was ever answered to it. */
  readonly answers: Map<string, Set<string>>;
}

/** A client's rule: whatever it was told last is what it presents; a lost answer is asked for again. */
async function refreshOnce(client: Client, held: Held): Promise<void> {
  const presented = held.token;
  const reply = await client.refresh(presented);
  if (reply.status !== 200) throw new Refused(`${reply.status} ${reply.text}`);
  const next = String(reply.json['refresh_token']);
  held.answers.set(presented, (held.answers.get(presented) ?? new Set()).add(next));
  held.token = next;
}

/** An answer that says no. Anything else that goes wrong is a connection that broke, and is tried again. */
class Refused extends Error {}

const audits = (server: ServeProcess, event: string): number =>
  server.log.filter((line) => line.audit === true && line.event === event).length;

test(`R13 S17 kill -9 under refresh load, ${KILLS} times: no acknowledged grant is lost, no token has two successors, nobody is punished for our crash`, async () => {
  const random = randomFrom(SEED);
  const helds: Held[] = [];
  /** Grants made and acknowledged under way, each looked at again after the kills that follow. */
  const made: Held[] = [];
  const total = {
    refreshes: 0,
    certificateGrants: 0,
    lostAnswers: 0,
    writtenBeforeTheKill: 0,
    midRefresh: 0,
  };
  const refusals: string[] = [];
  const opened: Client[] = [];
  const clientOf = (server: ServeProcess): Client => {
    const client = connect(folder, server.port, folder.alice);
    opened.push(client);
    return client;
  };

  for (let kill = 0; kill <= KILLS; kill += 1) {
    // Alone and with two workers by turns, on the same folder.
    const server = await startServe(folder, { set: [`listen.workers=${(kill % 2) + 1}`] });
    const checker = clientOf(server);
    while (helds.length < CLIENTS)
      helds.push({ token: (await checker.grant()).refresh_token, answers: new Map() });

    // First the retries: everyone presents what it holds, whether its last answer was lost or not.
    const sample = made
      .slice(-LOOKED_AT_EACH_RESTART / 2)
      .concat(
        Array.from(
          { length: LOOKED_AT_EACH_RESTART / 2 },
          () => made[Math.floor(random() * made.length)] ?? [],
        ).flat(),
      );
    for (const held of new Set([...helds, ...sample])) {
      try {
        await refreshOnce(checker, held);
      } catch (error) {
        refusals.push(`after kill ${kill}: ${String(error)}`);
      }
    }
    expect(refusals).toEqual([]);
    if (kill === KILLS) {
      await server.stop();
      total.writtenBeforeTheKill += audits(server, 'refresh_repeated');
      break;
    }

    const power = new AbortController();
    let underWay = 0;
    let lost = 0;
    const load = helds.map(async (held) => {
      const client = clientOf(server);
      while (!power.signal.aborted) {
        underWay += 1;
        try {
          await refreshOnce(client, held);
          total.refreshes += 1;
        } catch (error) {
          if (error instanceof Refused) refusals.push(`before kill ${kill + 1}: ${error.message}`);
          else lost += 1;
          return;
        } finally {
          underWay -= 1;
        }
      }
    });
    const maker = (async () => {
      const client = clientOf(server);
      while (!power.signal.aborted)
        try {
          made.push({ token: (await client.grant()).refresh_token, answers: new Map() });
          total.certificateGrants += 1;
        } catch (error) {
          if (!power.signal.aborted) throw error;
        }
    })();
    await new Promise((resolve) => setTimeout(resolve, 100 + random() * 500));
    if (underWay > 0) total.midRefresh += 1;
    power.abort();
    await server.kill9();
    await Promise.all([...load, maker]);
    total.lostAnswers += lost;
    total.writtenBeforeTheKill += audits(server, 'refresh_repeated');
    expect(refusals).toEqual([]);
    expect(audits(server, 'refresh_reuse')).toBe(0);
    for (const client of opened.splice(0)) client.close();
  }

  const forks = [...helds, ...made]
    .flatMap(({ answers }) => [...answers.values()])
    .filter((successors) => successors.size > 1);
  expect(forks).toEqual([]);

  // Once more everything that was ever acknowledged: each grant lives, and gives one successor, however often it is asked.
  const server = await startServe(folder);
  const checker = clientOf(server);
  for (const held of [...helds, ...made]) {
    const presented = held.token;
    await refreshOnce(checker, held);
    const again = await checker.refresh(presented);
    expect(again.json['refresh_token']).toBe(held.token);
  }
  expect(audits(server, 'refresh_reuse')).toBe(0);
  await server.stop();
  for (const client of opened) client.close();

  console.info(
    `kill -9: ${KILLS} kills (seed ${SEED}), ${total.midRefresh} in mid-refresh; ${total.refreshes} refreshes and ` +
      `${total.certificateGrants} certificate grants acknowledged, ${total.lostAnswers} answers lost, ` +
      `${total.writtenBeforeTheKill} of them already on disk; 0 grants lost, 0 forked, 0 clients punished`,
  );
  expect(total.midRefresh).toBeGreaterThan(KILLS * 0.8);
  expect(total.lostAnswers).toBeGreaterThan(KILLS);
}, 600_000);
