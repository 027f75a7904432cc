import { expect, onTestFinished } from 'vitest';
import { openOwnerStore, startStoreChild, storeTempFolder } from '../../support/store-fixtures.ts';

/** Kills a writer with SIGKILL `rounds` times, and checks that all acknowledged writes are in the store. */
export async function killWriters(rounds: number): Promise<void> {
  const folder = storeTempFolder();
  onTestFinished(() => folder.remove());
  let acknowledged = 0;
  for (let round = 0; round < rounds; round += 1) {
    const child = startStoreChild('write-until-killed', folder.path, `r${round}`);
    onTestFinished(() => child.kill());
    const printed: string[] = [];
    const lineCount = 50 + ((round * 137) % 400);
    while (printed.length < lineCount) {
      const line = await child.nextLine();
      if (line === undefined) throw new Error('the writer exited');
      printed.push(line);
    }
    const killed = child.kill();
    printed.push(...(await child.remainingLines()));
    await killed;

    const store = await openOwnerStore(folder.path);
    for (const line of printed) {
      const [what, id = '', generation] = line.split(' ');
      // The kill may truncate the last line; it is ignored then.
      if (!/^(grant \S+-\d+ [12]|revoked \S+-\d+)$/.test(line)) continue;
      acknowledged += 1;
      if (what === 'grant') {
        const found = await store.grants.read(id);
        expect(found?.record.generation, line).toBeGreaterThanOrEqual(Number(generation));
      } else
        expect(
          store.revocations.isRevoked({
            grantId: id,
            generation: 2,
            clientId: '',
            identity: '',
            issuedAt: 0,
          }),
          line,
        ).toBe(true);
    }
    await store.close();
  }
  expect(acknowledged).toBeGreaterThan(rounds * 40);
}
