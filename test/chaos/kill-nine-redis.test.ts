import { testKillNineRedis } from './kill-nine-redis.ts';

testKillNineRedis({ kills: 1, clients: 6, seed: 13, size: 2 });
