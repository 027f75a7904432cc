import { testLongOutage } from './long-outage.ts';
import { count } from './support.ts';

testLongOutage({ seconds: count('LONG_OUTAGE', 10, 600), maxStalenessSeconds: count('STALENESS', 5, 60) });
