import { checkStates } from './browser-states.ts';

checkStates('of a request');
