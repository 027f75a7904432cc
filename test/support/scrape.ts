import { type Reply, sendRequest } from './https-client.ts';

/** The response of `/metrics`, by name and labels in the text format. */
export interface Scrape {
  readonly text: string;
  readonly contentType: string;
  /** The samples, such as `up{job="a"}`. */
  readonly samples: ReadonlyMap<string, number>;
  /** Names of families, from their TYPE lines. */
  readonly families: ReadonlySet<string>;
  value(sample: string): number;
}

export async function scrape(adminPort: number): Promise<Scrape> {
  const { text, headers } = await adminRequest(adminPort, '/metrics');
  const samples = new Map<string, number>();
  const families = new Set<string>();
  for (const line of text.split('\n')) {
    const [, family] = /^# TYPE (\S+) /.exec(line) ?? [];
    if (family !== undefined) families.add(family);
    const [, name, value] = /^([a-z_]+(?:\{.*\})?) (\S+)$/.exec(line) ?? [];
    if (name === undefined) continue;
    if (samples.has(name)) throw new Error(`duplicate sample ${name}`);
    samples.set(name, Number(value));
  }
  return {
    text,
    contentType: headers['content-type'] ?? '',
    samples,
    families,
    value: (sample) => samples.get(sample) ?? Number.NaN,
  };
}

export const adminRequest = (port: number, path: string, method = 'GET'): Promise<Reply> =>
  sendRequest({ port, path, method, plain: true });
