import { describe } from 'vitest';
import { testSplitReads } from './split-reads.ts';

describe.each(['fast', 'full'] as const)('on the %s path', (path) => testSplitReads(path, 1));
