import { createServer } from 'node:net';

export interface DemoPorts {
  readonly listen: number;
  readonly admin: number;
}

/** Replaces the ports in the demo's gatehouse.yaml, where they are written as in the file that the demo creates. */
export const replacePorts = (text: string, { listen, admin }: DemoPorts): string =>
  text
    .replace(/^(publicUrl: https:\/\/localhost):\d+/m, `$1:${listen}`)
    .replace(createPortPattern('listen'), `$1${listen}`)
    .replace(createPortPattern('admin'), `$1${admin}`);

/** The first `port` of a section, up to the next line without indentation. */
const createPortPattern = (section: keyof DemoPorts): RegExp =>
  new RegExp(String.raw`^(${section}:[^\n]*\n(?: +[^\n]*\n)*? +port: )\d+`, 'm');

export const findFreePort = async (): Promise<number> => (await probe('127.0.0.1', 0)) ?? 0;

export const isFreePort = async (host: string, port: number): Promise<boolean> =>
  (await probe(host, port)) !== undefined;

/** The port that a server there gets; undefined if it cannot listen. */
const probe = (host: string, port: number): Promise<number | undefined> =>
  new Promise((resolve) => {
    const server = createServer().once('error', () => resolve(undefined));
    server.listen(port, host, () => {
      const address = server.address();
      server.close(() => resolve(typeof address === 'object' ? address?.port : undefined));
    });
  });
