import { checkStates } from './browser-states.ts';

checkStates();
