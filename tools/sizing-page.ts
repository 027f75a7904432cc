import { readMeasurements, renderSizingSection } from './sizing.ts';

/** docs/sizing.md, generated from the measurements. */
export const renderSizing = (): string => `# Sizing on Redis

The resources that an installation needs, computed from constants measured with \`npm run bench:redis\` (\`tools/sizing-constants.json\`). To compute your own:

\`\`\`sh
npm run sizing -- --grants 100000000 --replicas 100 --workers 4 --revocations 20
\`\`\`

| option | meaning | default |
|---|---|---|
| \`--grants\` | stored grants | 1,000,000 |
| \`--active\` | share of the grants whose clients run at the same time; each refreshes once per access-token lifetime | 0.3 |
| \`--access-lifetime\` | lifetime of access tokens in seconds | 3,600 |
| \`--replicas\`, \`--workers\` | replicas, and processes of each (\`listen.workers\`) | 3, 1 |
| \`--revocations\` | revocations per second; with \`supersede\`, every refresh is one | 0.1 |
| \`--revocation-lifetime\` | seconds for which a revocation is kept: the remaining lifetime of its grant plus a day | 30 days |

## Examples

${renderSizingSection(readMeasurements())}

Bearer-token checks are not in the table: they do not access Redis.

## Bottlenecks

- **One Redis core.** A refresh is one read and one compare-and-swap. Each grant has its own slot, so a cluster distributes them: twice the primaries, twice the refreshes. Longer access-token lifetimes mean fewer refreshes.
- **The slot of revocations.** Every process sends a heartbeat twice a second and receives every revocation; a cluster cannot distribute this. The load grows with processes × revocations: use fewer workers, and note that \`tokens.refresh.supersede\` adds a revocation for each refresh.
- **Memory of each process.** Every process keeps all current revocations. With shorter grant lifetimes they expire sooner.
- **Start-up time.** A process reads all revocations before it is ready. If you have very many processes, restart them one after another.
- **Rate limits.** They do not limit the installation as a whole: \`limits.rates\` applies to each grant and each certificate, and to client addresses only for calls without a valid credential. Raise \`limits.rates.device\` if more than ten users per second start a device sign-in from one address.
- **Memory of Redis.** Grants are kept until a day after they expire. A cluster distributes them evenly. Reserve memory for the copy that Redis makes while it saves (fork).
`;
