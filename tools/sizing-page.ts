import { readMeasurements, renderSizingSection } from './sizing.ts';

/** docs/sizing.md: made from what was measured, so that it cannot say anything else. */
export const renderSizing = (): string => `# Sizing on Redis

What an installation takes, derived from constants that \`npm run bench:redis\` measures (\`tools/sizing-constants.json\`). For numbers of your own:

\`\`\`sh
npm run sizing -- --grants 100000000 --replicas 100 --workers 4 --revocations 20
\`\`\`

| option | meaning | default |
|---|---|---|
| \`--grants\` | grants that are kept | 1,000,000 |
| \`--active\` | part of them whose clients run at the same time; each refreshes once in the life of an access token | 0.3 |
| \`--access-lifetime\` | seconds an access token lives | 3,600 |
| \`--replicas\`, \`--workers\` | machines, and processes on each (\`listen.workers\`) | 3, 1 |
| \`--revocations\` | revocations in a second; with \`supersede\` every refresh is one | 0.1 |
| \`--revocation-lifetime\` | seconds a revocation is remembered: what was left of its grant, and a day | 30 days |

## Examples

${renderSizingSection(readMeasurements())}

Bearer checks are not in the table: they ask nobody, and cost Redis nothing.

## Where the walls are, and what moves them

- **One Redis core.** A refresh is one read and one compare-and-swap. Grants lie in slots of their own, so a cluster divides them: twice the primaries, twice the refreshes. Longer access tokens make fewer refreshes.
- **The slot of revocations.** Every process beats twice a second and hears of every revocation; a cluster does not divide that. It grows with processes × revocations: fewer and larger workers move it, and \`tokens.refresh.supersede\` (a revocation for each refresh) brings it nearer.
- **The memory of each process.** Every revocation that still matters is in every process. Shorter grants are forgotten sooner.
- **The time of a start.** A process reads all revocations before it is ready. Rolling restarts of very many processes at once are many such readings: restart them one after another.
- **Rate limits.** They never bound an installation as a whole: \`limits.rates\` counts each grant and each certificate by itself, and by client address only calls without a valid credential. Raise \`limits.rates.device\` if more than ten people a second start a device sign-in behind one address.
- **Memory of Redis.** Grants are kept until a day after their end. A cluster divides them evenly; leave room for a copy while it saves (fork).
`;
