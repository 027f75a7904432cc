import { testPromotion } from './promotion.ts';
import { count } from './support.ts';

testPromotion({ rounds: count('PARTITIONS', 3, 20), clients: 8, revocations: 10 });
