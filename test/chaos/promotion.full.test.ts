import { count } from './form.ts';
import { testPromotion } from './promotion.ts';

testPromotion({ rounds: count('PARTITIONS', 3, 20), clients: 8, revocations: 10 });
