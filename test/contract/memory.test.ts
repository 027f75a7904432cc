import { createMemoryStore } from '../support/memory-store.ts';
import { describeGrantIndex } from './grant-index.ts';
import { describeStore } from './record-store.ts';

describeStore('the store in memory', async (now) => createMemoryStore({ now }));
describeGrantIndex('the store in memory', async (now) => createMemoryStore({ now }));
