import { attackHouse } from '../support/attack-house.ts';
import { testAnyTarget } from './any-target.ts';

testAnyTarget(attackHouse(), { numRuns: Number(process.env['ROW_COUNT'] ?? 10_000) });
