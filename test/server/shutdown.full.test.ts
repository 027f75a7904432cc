import { testShutdown } from './shutdown.ts';

testShutdown(1);
