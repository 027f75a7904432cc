import { describe } from 'vitest';
import { testSplitReads } from './split-reads.ts';

describe('on the fast path', () => testSplitReads('fast', 7));
