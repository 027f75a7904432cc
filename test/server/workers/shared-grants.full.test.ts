import { testGrantsOfTwoWorkers } from './shared-grants.ts';

testGrantsOfTwoWorkers({ refreshed: 20, redeemed: 200, raced: 300, revoked: 200 });
