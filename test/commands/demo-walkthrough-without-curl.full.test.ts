import { walkThrough } from './demo-walkthrough.ts';

walkThrough('sh', false);
