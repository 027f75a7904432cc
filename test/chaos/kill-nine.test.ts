import { testKillNine } from './kill-nine.ts';

testKillNine({ kills: 1, clients: 6, seed: 20_260_131 });
