import { afterAll, beforeAll, expect, test } from 'vitest';
import { type ConsoleHarness, startConsole } from '../support/console-harness.ts';
import { watchEventLoop } from '../support/event-loop.ts';
import type { FormBrowser } from '../support/form-browser.ts';
import { testGrant } from '../support/store-fixtures.ts';

/** Searches through a large embedded store, in the process that serves the requests of clients. */
const COUNT = 100_000;
let harness: ConsoleHarness;
let operator: FormBrowser;

beforeAll(async () => {
  harness = await startConsole();
  const { clock, server } = harness.gateway;
  const time = Math.floor(clock.now());
  const until = time + 86_400;
  for (let first = 0; first < COUNT; first += 5_000)
    await Promise.all(
      Array.from({ length: 5_000 }, (_, at) => {
        const id = `seeded-${first + at}`;
        const grant = testGrant({
          id,
          identity: `corp:${first + at}`,
          issuedAt: time,
          rotatedAt: time,
          refreshUntil: until,
          profile: { name: `person-${(first + at) % 50_000}` },
        });
        return server.store.grants.create(id, grant, until);
      }),
    );
  operator = await harness.signedIn();
}, 300_000);
afterAll(() => harness?.close());

/** CPU time of one iteration of the event loop. A page of 2,000 grants takes about 15 ms, all of them more than 500 ms. */
const LONGEST_MS = 150;

test('a search without a match reads all grants in steps, and requests are served meanwhile', async () => {
  let served = 0;
  const searching = new AbortController();
  const { longestCpu } = await watchEventLoop(async () => {
    const load = (async () => {
      while (!searching.signal.aborted) {
        await harness.gateway.api('/health');
        served += 1;
      }
    })();
    let path = '/console/grants?by=subject&q=CN%3Dnobody';
    for (;;) {
      const { text } = await operator.get(path);
      const next = /href="([^"]*after=[^"]*)"/.exec(text)?.[1];
      if (next === undefined) {
        expect(text).toContain('No live grant matches.');
        break;
      }
      path = next.replaceAll('&amp;', '&');
    }
    searching.abort();
    await load;
  });
  expect(served).toBeGreaterThan(5);
  expect(longestCpu).toBeLessThan(LONGEST_MS);
});

test('many searches at once share the event loop: each iteration reads one page', async () => {
  const { longestCpu } = await watchEventLoop(() =>
    Promise.all(Array.from({ length: 20 }, () => operator.get('/console/grants?by=subject&q=CN%3Dnobody'))),
  );
  expect(longestCpu).toBeLessThan(LONGEST_MS);
});

test('revoking the grants of a certificate among all of them lets requests through', async () => {
  await operator.get('/console/revoke?by=serial&q=0a0b');
  const { longestCpu } = await watchEventLoop(() => operator.post('/console/revoke'));
  expect(longestCpu).toBeLessThan(LONGEST_MS);
});

test('a name that several people have is not revoked; each identity is offered', async () => {
  const { text } = await operator.get('/console/revoke?by=name&q=person-7');
  expect(text).toContain('Several people match.');
  expect(text).not.toMatch(/action="\/console\/revoke"/);
});
