import { createRequire } from 'node:module';
import type { Pool as UndiciPool } from 'undici';

/**
 * undici's connection pool, and nothing else of undici: its front door also loads fetch, WebSocket and caches,
 * which none of us uses and which makes every start 60 ms longer. undici is pinned to the exact version.
 */
export const Pool = createRequire(import.meta.url)('undici/lib/dispatcher/pool.js') as typeof UndiciPool;
export type Pool = InstanceType<typeof UndiciPool>;
