import { fuzzApi } from './api-fuzz.ts';

fuzzApi(1, 'anonymous');
