import { testAnyTarget } from './any-target.ts';
import { attackHouse } from './attack-house.ts';

testAnyTarget(attackHouse(), { numRuns: Number(process.env['ROW_COUNT'] ?? 10_000) });
