import { testPromotion } from './promotion.ts';

testPromotion({ rounds: 1, clients: 4, revocations: 3 });
