import { testLeakage } from './leakage.ts';

testLeakage(Number(process.env['LEAKAGE_ROUNDS'] ?? 40));
