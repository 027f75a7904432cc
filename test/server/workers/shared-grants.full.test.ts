import { grantsOfTwoWorkers } from './shared-grants.ts';

grantsOfTwoWorkers({ refreshed: 20, redeemed: 200, raced: 300, revoked: 200 });
