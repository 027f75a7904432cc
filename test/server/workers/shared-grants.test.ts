import { testGrantsOfTwoWorkers } from './shared-grants.ts';

testGrantsOfTwoWorkers({ refreshed: 3, redeemed: 24, raced: 24, revoked: 24 });
