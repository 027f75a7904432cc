import { testKillNine } from './kill-nine.ts';
import { count } from './support.ts';

testKillNine({
  kills: count('KILLS', 6, 50),
  clients: 24,
  seed: Number(process.env['SEED'] ?? 20_260_131),
});
