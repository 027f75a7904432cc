import { deriveClientLimits } from '../src/listener/client-accounts.ts';
import { readMeasurements, renderSizingSection } from './sizing.ts';

const MEBIBYTE = 1_048_576;
const CORE_STEP = 50;

interface Reservation {
  readonly perSecond: number;
  readonly workers: number;
  readonly mebibytes: number;
}

const RESERVATIONS: readonly Reservation[] = [
  { perSecond: 100, workers: 1, mebibytes: 128 },
  { perSecond: 1_000, workers: 1, mebibytes: 192 },
  { perSecond: 10_000, workers: 2, mebibytes: 512 },
];

/** Twice the processor time that the requests need, for handshakes, tokens and peaks. */
function renderReservation({ perSecond, workers, mebibytes }: Reservation, cpuMicros: number): string {
  const used = (perSecond * cpuMicros) / 1e6;
  const millicores = Math.ceil((2_000 * used) / CORE_STEP) * CORE_STEP;
  const kept = workers * deriveClientLimits(workers, mebibytes * MEBIBYTE).keptConnections;
  const cells = [
    perSecond.toLocaleString('en'),
    String(workers),
    String(Number(used.toPrecision(2))),
    `${millicores}m`,
    `${mebibytes}Mi`,
    kept.toLocaleString('en'),
  ];
  return `| ${cells.join(' | ')} |`;
}

function renderReservations(): string {
  const { bearerCpuMicros } = readMeasurements().constants;
  return `| requests per second | \`listen.workers\` | cores used | CPU request | memory limit | idle connections it keeps at most |
|---|---|---|---|---|---|
${RESERVATIONS.map((reservation) => renderReservation(reservation, bearerCpuMicros)).join('\n')}`;
}

/** docs/sizing.md, generated from the measurements. */
export const renderSizing = (): string => `# Sizing

## What to reserve

For each replica, with either store. A request with a valid token over TLS counts as one.

${renderReservations()}

- Set no CPU limit: a throttled process delays all of its requests. One process serves at most what one core can.
- Set the memory limit: gatehouse derives the number of connections and its buffers from it ([memory](deploy.md#memory), with what was tested).

| to this, add | memory | measured by |
|---|---|---|
| a connection | 62 KiB in gatehouse: 42 to 46 KiB idle, and buffers while it is used | \`npm run bench -- --only idle\` |
| a million revocations | 25 MB in each process | \`npm run bench:redis\` |
| a million grants, embedded store | 1 GB in the data file, of which gatehouse reads what it needs: 10 MB more resident memory, which the system can take back; nothing else | \`npm run bench -- --only growth\` |
| a million grants, Redis | 715 MB in Redis, nothing in gatehouse | \`npm run bench:redis\` |

An idle process needs 33 MB with the embedded store and 36 MB with Redis, and about 60 MB for the code of Node, which all its processes on a machine share
(\`npm run bench:memory\`).

## Redis

The resources that an installation on Redis needs, computed from constants measured with \`npm run bench:redis\` (\`tools/sizing-constants.json\`). To compute your own:

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

### Examples

${renderSizingSection(readMeasurements())}

Bearer-token checks are not in the table: they do not access Redis.

### Bottlenecks

- **One Redis core.** A refresh is one read and one compare-and-swap. Each grant has its own slot, so a cluster distributes them: twice the primaries, twice the refreshes. Longer access-token lifetimes mean fewer refreshes.
- **The slot of revocations.** Every process sends a heartbeat twice a second and receives every revocation; a cluster cannot distribute this. The load grows with processes × revocations: use fewer workers, and note that \`tokens.refresh.supersede\` adds a revocation for each refresh.
- **Memory of each process.** Every process keeps all current revocations. With shorter grant lifetimes they expire sooner.
- **Start-up time.** A process reads all revocations before it is ready. If you have very many processes, restart them one after another.
- **Rate limits.** They do not limit the installation as a whole: \`limits.rates\` applies to each grant and each certificate, and to client addresses only for calls without a valid credential. Raise \`limits.rates.device\` if more than ten users per second start a device sign-in from one address.
- **Memory of Redis.** Grants are kept until a day after they expire. A cluster distributes them evenly. Reserve memory for the copy that Redis makes while it saves (fork).
`;
