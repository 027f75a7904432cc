import { endings } from './endings-of-processes.ts';

endings(2);
