import { describe } from 'vitest';
import { testInterleaved } from './interleaved-requests.ts';

describe.each(['fast', 'full'] as const)('on the %s path', (path) => testInterleaved(path, 400));
