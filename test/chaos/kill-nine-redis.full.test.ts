import { count, SEED } from './form.ts';
import { testKillNineRedis } from './kill-nine-redis.ts';

testKillNineRedis({ kills: count('REDIS_KILLS', 20, 200), clients: 18, seed: SEED, size: 3 });
