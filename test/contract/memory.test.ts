import { memoryStore } from '../../src/stores/memory.ts';
import { describeGrantIndex } from './grant-index.ts';
import { describeStore } from './record-store.ts';

describeStore('the store in memory', async (now) => memoryStore({ now }));
describeGrantIndex('the store in memory', async (now) => memoryStore({ now }));
