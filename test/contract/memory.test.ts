import { memoryStore } from '../../src/stores/memory.ts';
import { describeStore } from './record-store.ts';

describeStore('the store in memory', async (now) => memoryStore({ now }));
