import { grantsOfTwoWorkers } from './shared-grants.ts';

grantsOfTwoWorkers({ refreshed: 3, redeemed: 24, raced: 24, revoked: 24 });
