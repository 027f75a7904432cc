/** Programs that use a store in a separate process, for tests that kill it or race with it. */
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
  /** Opens the store as its owner and keeps running. */
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

  /** Writes until killed; prints each write after it was acknowledged. */
  async 'write-until-killed'() {
    const store = await open('owner');
    const writer = async (writerIndex: number): Promise<void> => {
      for (let count = 0; ; count += 1) {
        const id = `${extra}-${writerIndex}-${count}`;
        await store.grants.create(id, testGrant({ id }), LATER);
        print(`grant ${id} 1`);
        const found = await store.grants.read(id);
        if (found === undefined) throw new Error(`${id} was written but cannot be read`);
        await store.grants.replace(id, found.version, testGrant({ id, generation: 2 }), LATER);
        print(`grant ${id} 2`);
        await store.revocations.announce({ of: 'grant', grantId: id, belowGeneration: 3, keepUntil: LATER });
        print(`revoked ${id}`);
      }
    };
    await Promise.all(Array.from({ length: 16 }, (_, writerIndex) => writer(writerIndex)));
  },

  /** On input, creates a hundred ids concurrently; prints those it created first. */
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

  /** On input, tries a hundred times to create the same id. */
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

  /** Revokes what each input line names, and prints when it was acknowledged. */
  async revoke() {
    const store = await open('worker');
    print('ready');
    for await (const chunk of process.stdin)
      for (const line of String(chunk).trim().split('\n')) {
        const [of = '', name = ''] = line.split(' ');
        await store.revocations.announce(
          of === 'grant'
            ? { of, grantId: name, belowGeneration: Number.POSITIVE_INFINITY, keepUntil: LATER }
            : of === 'client'
              ? { of, clientId: name, notBefore: NOW + 1, keepUntil: LATER }
              : { of: 'identity', identity: name, notBefore: NOW + 1, keepUntil: LATER },
        );
        print(`revoked ${line}`);
      }
    process.exit(0);
  },
};

await programs[program]?.();
