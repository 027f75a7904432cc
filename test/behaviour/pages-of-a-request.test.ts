import { checkStates } from './pages-in-a-browser.ts';

checkStates('of a request');
