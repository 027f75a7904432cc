import { ProblemsError } from '../lib/problems-error.ts';

/** Why gatehouse cannot start, or cannot apply a new configuration. */
export class StartError extends ProblemsError {}
