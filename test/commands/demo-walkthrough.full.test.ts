import { walkThrough } from './demo-walkthrough.ts';

walkThrough('bash', true);
