import { checkStates } from './browser-states.ts';

checkStates('of decisions and grants');
