/** An exchange that is about to take a connection and send its request. */
export interface Sender {
  send(): void;
}

let queue: Sender[] = [];

/** Calls `send` after pending reads: connections that the upstream has closed or that have sent stray bytes are gone by then. */
export function sendSoon(sender: Sender): void {
  if (queue.length === 0) setImmediate(sendAll);
  queue.push(sender);
}

function sendAll(): void {
  const senders = queue;
  queue = [];
  for (const sender of senders) sender.send();
}
