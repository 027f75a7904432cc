import type { RequestListener } from 'node:http';
import type { ServeFolder, ServeProcess } from '../../test/support/serve-process.ts';
import type { SettingsChange } from '../../test/support/test-gateway.ts';

/** What a soak does to the program. */
export interface SoakLoad {
  readonly change: SettingsChange;
  /** The API; default: one that responds with `ok`. */
  readonly upstream?: RequestListener;
  /** Whether memory is measured after a full garbage collection without clients: what they hold varies. */
  readonly isPausedForHeapSamples: boolean;
  start(folder: ServeFolder, server: ServeProcess): Promise<RunningLoad>;
}

export interface RunningLoad {
  completed(): number;
  /** Responses with 503: other load on the machine may stall the process for a second. */
  rejected(): number;
  failures(): readonly string[];
  /** How often each kind of client has run. */
  activities?(): Readonly<Record<string, number>>;
  stop(): Promise<void>;
}
