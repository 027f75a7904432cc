import { testPromotion } from './promotion.ts';
import { count } from './report.ts';

testPromotion({ rounds: count('PARTITIONS', 3, 20), clients: 8, revocations: 10 });
