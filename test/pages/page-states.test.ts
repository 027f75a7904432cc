import { checkStates } from './browser-states.ts';

/** browser-states.full.test.ts checks every page and state. */
checkStates(['code', 'sign-in-wrong', 'review', 'authorization', 'approved', 'grants']);
