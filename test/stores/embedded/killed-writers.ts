import { expect, onTestFinished } from 'vitest';
import { openOwnerStore, startStoreChild, storeTempFolder } from '../../support/store-fixtures.ts';

/** Kills a writer with SIGKILL so often, and reads what it had acknowledged. */
export async function killWriters(rounds: number): Promise<void> {
  const folder = storeTempFolder();
  onTestFinished(() => folder.remove());
  let acknowledged = 0;
  for (let round = 0; round < rounds; round += 1) {
    const child = startStoreChild('write-until-killed', folder.path, `r${round}`);
    onTestFinished(() => child.kill());
    const printed: string[] = [];
    const enough = 50 + ((round * 137) % 400);
    while (printed.length < enough) {
      const line = await child.nextLine();
      if (line === undefined) throw new Error('the writer ended by itself');
      printed.push(line);
    }
    const killed = child.kill();
    printed.push(...(await child.remainingLines()));
    await killed;

    const store = await openOwnerStore(folder.path);
    for (const line of printed) {
      const [what, id = '', generation] = line.split(' ');
      // The last line may be cut off by the kill; it is then not known what it said.
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
