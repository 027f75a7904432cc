import { describe } from 'vitest';
import { testInterleaved } from './interleaved-requests.ts';

const REQUESTS = Number(process.env['ROW_COUNT'] ?? 10_000);

describe.each(['fast', 'full'] as const)('on the %s path', (path) => testInterleaved(path, REQUESTS));
