/** Somebody who is about to take a connection and write to it. */
export interface Asking {
  ask(): void;
}

let asking: Asking[] = [];

/** After all that had come was read: a connection that is not in step any more is gone by then. */
export function askSoon(who: Asking): void {
  if (asking.length === 0) setImmediate(askAll);
  asking.push(who);
}

function askAll(): void {
  const now = asking;
  asking = [];
  for (const who of now) who.ask();
}
