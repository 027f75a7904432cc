/** Small programs that use a store from a process of their own, for tests that kill it or race with it. */
import { once } from 'node:events';
import { Fault } from '../../src/ports/fault.ts';
import { openEmbeddedStore } from '../../src/stores/embedded/store.ts';
import { testAuthenticator } from './record-keys.ts';
import { LATER, NOW, testGrant } from './store-fixtures.ts';

const [program = '', path = '', extra = ''] = process.argv.slice(2);
const print = (line: string): boolean => process.stdout.write(`${line}\n`);
const open = (role: 'owner' | 'worker') =>
  openEmbeddedStore({ path, mapSize: 2 ** 30, role, now: () => NOW, authenticator: testAuthenticator() });

const programs: Record<string, () => Promise<void>> = {
  /** Opens as the owner, says so, and stays. */
  async hold() {
    await open('owner');
    print('open');
    setInterval(() => {}, 1000);
  },

  async 'try-to-own'() {
    try {
      await open('owner');
      print('open');
    } catch (error) {
      print(error instanceof Fault ? `${error.code} ${error.message}` : `other ${String(error)}`);
    }
    process.exit(0);
  },

  /** Writes without end; prints what was acknowledged, and only then. */
  async 'write-until-killed'() {
    const store = await open('owner');
    const writer = async (writerIndex: number): Promise<void> => {
      for (let count = 0; ; count += 1) {
        const id = `${extra}-${writerIndex}-${count}`;
        await store.grants.create(id, testGrant({ id }), LATER);
        print(`grant ${id} 1`);
        const found = await store.grants.read(id);
        if (found === undefined) throw new Error('what was written cannot be read');
        await store.grants.replace(id, found.version, testGrant({ id, generation: 2 }), LATER);
        print(`grant ${id} 2`);
        await store.revocations.announce({ of: 'grant', grantId: id, belowGeneration: 3, keepUntil: LATER });
        print(`revoked ${id}`);
      }
    };
    await Promise.all(Array.from({ length: 16 }, (_, writerIndex) => writer(writerIndex)));
  },

  /** When told to, creates each of a hundred ids once, all at the same time; prints those it was first for. */
  async 'create-all'() {
    const store = await open('worker');
    print('ready');
    await once(process.stdin, 'data');
    const ids = Array.from({ length: 100 }, (_, index) => `race-${index}`);
    const outcomes = await Promise.all(
      ids.map(async (id) => [id, await store.grants.create(id, testGrant({ id, clientId: extra }), LATER)]),
    );
    for (const [id, outcome] of outcomes) if (outcome === 'created') print(`${id}`);
    process.exit(0);
  },

  /** When told to, tries a hundred times to create one and the same id. */
  async 'create-one'() {
    const store = await open('worker');
    print('ready');
    await once(process.stdin, 'data');
    const outcomes = await Promise.all(
      Array.from({ length: 100 }, () => store.grants.create('the-one', testGrant({ id: 'the-one' }), LATER)),
    );
    print(String(outcomes.filter((outcome) => outcome === 'created').length));
    process.exit(0);
  },

  /** Revokes what it is told to, and says when that is acknowledged. */
  async revoke() {
    const store = await open('worker');
    print('ready');
    for await (const chunk of process.stdin)
      for (const word of String(chunk).trim().split('\n')) {
        const [of = '', name = ''] = word.split(' ');
        await store.revocations.announce(
          of === 'grant'
            ? { of, grantId: name, belowGeneration: Number.POSITIVE_INFINITY, keepUntil: LATER }
            : of === 'client'
              ? { of, clientId: name, notBefore: NOW + 1, keepUntil: LATER }
              : { of: 'identity', identity: name, notBefore: NOW + 1, keepUntil: LATER },
        );
        print(`revoked ${word}`);
      }
    process.exit(0);
  },
};

await programs[program]?.();
