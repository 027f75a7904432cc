import { beginRequest } from '../support/https-client.ts';
import { connect, makeServeFolder, type ServeFolder, startServe } from '../support/serve-process.ts';
import { until } from '../support/until.ts';

/** What one end of one process was like for those who called it meanwhile. */
export interface Ending {
  readonly exitCode: number | null;
  readonly asked: number;
  /** Requests whose connection came only after the pre-stop time, on a busy machine: they prove nothing. */
  readonly tooLate: number;
  /** Requests that were not answered as if nothing happened. */
  readonly failures: readonly string[];
}

export interface TerminationFolder extends ServeFolder {
  /** Requests the API has begun and not answered yet. */
  readonly underWay: () => number;
}

/** An API that takes its time for `/slow`: longer than the pre-stop time, so that the request still runs when that is over. */
export async function terminationFolder(preStop: string, slowMs: number): Promise<TerminationFolder> {
  let underWay = 0;
  const folder = await makeServeFolder(
    (settings) => ({
      ...settings,
      routes: [{ path: '/**', public: true }],
      shutdown: { preStop, drain: '30s' },
    }),
    (incoming, response) => {
      underWay += 1;
      response.on('close', () => {
        underWay -= 1;
      });
      incoming
        .resume()
        .on('end', () => setTimeout(() => response.end('ok'), incoming.url === '/slow' ? slowMs : 0));
    },
  );
  return { ...folder, underWay: () => underWay };
}

/**
 * What a kubelet and a load balancer do to a pod that is to end: requests are running, SIGTERM comes, and those who have not
 * heard of it yet go on asking, on connections they have and on new ones, for less than the pre-stop time.
 */
export async function endOnce(folder: TerminationFolder, preStopMs: number): Promise<Ending> {
  const server = await startServe(folder, { set: ['listen.workers=1'] });
  const failures: string[] = [];
  let asked = 0;
  let tooLate = 0;
  let signalled = Number.POSITIVE_INFINITY;
  const note = async (what: string, asking: Asking): Promise<void> => {
    try {
      const { status, text } = await asking.answer;
      asked += 1;
      if (status !== 200 || text !== 'ok') failures.push(`${what}: ${status} ${text}`);
    } catch (error) {
      // This machine was so busy that the connection stood (or was refused) only after the pre-stop time: that says nothing.
      const tried = Math.min(asking.connected?.() ?? 0, performance.now());
      if (tried - signalled >= preStopMs) {
        tooLate += 1;
        return;
      }
      failures.push(`${what}: ${(error as Error).message}`);
    }
  };
  const kept = connect(folder, server.port);
  const other = connect(folder, server.port);
  await note('before', { answer: kept.ask({ path: '/health' }) });
  const running = note('in flight', { answer: other.ask({ path: '/slow' }) });
  const upload = send(folder, server.port, '/upload');
  upload.begin('first half, ');
  const uploaded = note('upload', upload);
  await until('both are under way', () => folder.underWay() >= 2);
  signalled = performance.now();
  server.signal('SIGTERM');
  const isLate = (): boolean => performance.now() - signalled < preStopMs * 0.7;
  const goOn = async (one: () => Promise<void>): Promise<void> => {
    while (isLate()) await one();
  };
  await Promise.all([
    goOn(() => note('late, kept connection', { answer: kept.ask({ path: '/health' }) })),
    goOn(() => {
      const fresh = send(folder, server.port, '/health');
      fresh.finish('');
      return note('late, new connection', fresh);
    }),
  ]);
  upload.finish('second half');
  await Promise.all([running, uploaded]);
  const { code } = await server.ended;
  kept.close();
  other.close();
  return { exitCode: code, asked, tooLate, failures };
}

interface Asking {
  readonly answer: Promise<{ readonly status: number; readonly text: string }>;
  /** When its connection stood; for ever later when it never did. */
  readonly connected?: () => number;
}

/** A request on a connection of its own, whose body is sent piece by piece. */
export function send(folder: ServeFolder, port: number, path: string) {
  const { sent, reply } = beginRequest({
    port,
    path,
    method: 'POST',
    ca: folder.ca.pem,
    headers: { 'content-type': 'text/plain', 'transfer-encoding': 'chunked' },
  });
  let connected = Number.POSITIVE_INFINITY;
  sent.once('socket', (socket) =>
    socket.once('connect', () => {
      connected = performance.now();
    }),
  );
  return {
    answer: reply.then(({ status, text }) => ({ status, text })),
    connected: () => connected,
    begin: (text: string) => void sent.write(text),
    finish: (text: string) => void sent.end(text),
  };
}
