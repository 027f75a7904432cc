import { testKillNineRedis } from './kill-nine-redis.ts';
import { count, SEED } from './support.ts';

testKillNineRedis({ kills: count('REDIS_KILLS', 20, 200), clients: 18, seed: SEED, size: 3 });
