/**
 * Announces the shutdown. The kernel decides who may send it, and unlike SIGWINCH and SIGQUIT, terminals do not send it. Linux only.
 */
export const DRAIN_SIGNAL = 'SIGPWR';

/** A terminal and a wrapper such as npm may deliver one signal twice within this time. */
const SAME_SIGNAL_MS = 250;

export type StopSignal = 'SIGTERM' | 'SIGINT';

/** Calls `onFirst` at the first SIGTERM or SIGINT, and `onRepeated` at a later one. */
export function onStopSignal(onFirst: (signal: StopSignal) => void, onRepeated: () => void): void {
  let state: 'running' | 'stopping' | 'repeatable' = 'running';
  const onSignal = (signal: StopSignal): void => {
    if (state === 'repeatable') return onRepeated();
    if (state === 'stopping') return;
    state = 'stopping';
    // A signal that waits while the event loop is blocked is read before the immediate runs.
    setTimeout(() => setImmediate(() => (state = 'repeatable')), SAME_SIGNAL_MS).unref();
    onFirst(signal);
  };
  for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => onSignal(signal));
}
