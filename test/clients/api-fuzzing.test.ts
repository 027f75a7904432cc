import { fuzzApi } from './api-fuzz.ts';

/** Examples per operation and kind of data. */
fuzzApi(1);
