import { fuzzApi } from './api-fuzz.ts';

fuzzApi(Number(process.env['FUZZ_EXAMPLES'] ?? 20), 'anonymous', 'authenticated');
