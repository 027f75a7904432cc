import { testAnyTarget } from './any-target.ts';
import { useAttackGateway } from './attack-gateway.ts';

testAnyTarget(useAttackGateway(), { numRuns: Number(process.env['ROW_COUNT'] ?? 10_000) });
