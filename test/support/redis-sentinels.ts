import { writeFileSync } from 'node:fs';
import { Redis } from 'ioredis';
import { type RedisServer, startRedis } from './redis-server.ts';
import { tempFolder } from './temp-folder.ts';
import { until } from './until.ts';

const NAME = 'house';

/** Three Sentinels that monitor one primary. */
export interface RedisSentinels {
  /** For `store.url`. */
  readonly url: string;
  /** Promotes a replica, also if the primary is down, and waits until the Sentinels report the new primary. */
  failover(): Promise<number>;
  /** Waits until every Sentinel knows this many replicas that are up. */
  untilReplicas(count: number): Promise<void>;
  stop(): Promise<void>;
}

/** The primary already has `replicas` replicas. */
export async function startRedisSentinels(
  primary: RedisServer,
  { replicas }: { readonly replicas: number },
): Promise<RedisSentinels> {
  const folder = tempFolder('sentinels');
  const servers: RedisServer[] = [];
  const clients: Redis[] = [];
  const stop = async (): Promise<void> => {
    for (const client of clients) client.disconnect();
    for (const server of servers) await server.stop();
    folder.remove();
  };
  const getPrimaryPort = async (client: Redis): Promise<number> => {
    const [, port] = (await client.call('SENTINEL', 'GET-MASTER-ADDR-BY-NAME', NAME)) as [string, string];
    return Number(port);
  };
  /** A reply to SENTINEL REPLICAS is a list of flat lists of names and values. */
  const countReplicas = async (client: Redis): Promise<number> => {
    const found = (await client.call('SENTINEL', 'REPLICAS', NAME)) as readonly (readonly string[])[];
    return found.filter(
      (fields) =>
        fields[fields.indexOf('flags') + 1] === 'slave' && fields[fields.indexOf('master-link-status') + 1] === 'ok',
    ).length;
  };
  try {
    for (let number = 0; number < 3; number += 1) {
      const file = folder.file(`sentinel-${number}.conf`);
      writeFileSync(
        file,
        [
          `sentinel monitor ${NAME} 127.0.0.1 ${primary.port} 2`,
          // A slow machine must not look like a failed primary; the tests start each failover explicitly.
          `sentinel down-after-milliseconds ${NAME} 60000`,
          `sentinel failover-timeout ${NAME} 5000`,
          '',
        ].join('\n'),
      );
      servers.push(await startRedis(['--sentinel'], { file: [file] }));
    }
    clients.push(...servers.map(({ port }) => new Redis(port, '127.0.0.1', { enableReadyCheck: false })));
    // Sentinels find each other sooner, and a pause of the machine neither triggers TILT mode nor excludes the replica.
    for (const client of clients)
      await client.call('SENTINEL', 'DEBUG', 'PUBLISH-PERIOD', '200', 'INFO-PERIOD', '500', 'TILT-TRIGGER', '60000');
    await until('the Sentinels know each other and the replicas', async () => {
      const found = await Promise.all(clients.map((client) => client.info('sentinel')));
      return found.every((text) => text.includes(`slaves=${replicas},sentinels=3`));
    });
  } catch (error) {
    await stop();
    throw error;
  }
  return {
    url: `redis+sentinel://${servers.map(({ port }) => `127.0.0.1:${port}`).join(',')}/${NAME}`,
    async failover() {
      const [first] = clients as [Redis];
      const before = await getPrimaryPort(first);
      // A Sentinel that has not finished the last failover refuses another one.
      await until('a Sentinel starts the failover', () =>
        first.call('SENTINEL', 'FAILOVER', NAME).then(
          () => true,
          () => false,
        ),
      );
      return until('all Sentinels report a new primary', async () => {
        const ports = new Set(await Promise.all(clients.map(getPrimaryPort)));
        const [port = before] = ports;
        return ports.size === 1 && port !== before && port;
      });
    },
    async untilReplicas(count) {
      await until(`every Sentinel knows ${count} replicas`, async () =>
        (await Promise.all(clients.map(countReplicas))).every((found) => found >= count),
      );
    },
    stop,
  };
}
