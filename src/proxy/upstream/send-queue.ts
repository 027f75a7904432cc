/** An exchange that is about to take a connection and send its request. */
export interface Sender {
  /** Used by the queue only. A linked list creates no garbage, and what has left it keeps nothing else in memory. */
  nextSender: Sender | undefined;
  /** It must not throw. */
  send(): void;
}

let first: Sender | undefined;
let last: Sender | undefined;

/** Calls `send` after pending reads: connections that the upstream has closed or that have sent stray bytes are gone by then. */
export function sendSoon(sender: Sender): void {
  if (last === undefined) {
    first = sender;
    setImmediate(sendAll);
  } else last.nextSender = sender;
  last = sender;
}

function sendAll(): void {
  let sender = first;
  first = undefined;
  last = undefined;
  while (sender !== undefined) {
    const next: Sender | undefined = sender.nextSender;
    sender.nextSender = undefined;
    sender.send();
    sender = next;
  }
}
