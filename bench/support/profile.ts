import { readFileSync } from 'node:fs';
import { relative } from 'node:path';

/** The parts of a `.cpuprofile` that are used. */
interface Profile {
  readonly nodes: readonly {
    readonly id: number;
    readonly callFrame: {
      readonly functionName: string;
      readonly url: string;
      readonly lineNumber: number;
    };
  }[];
  readonly samples: readonly number[];
  readonly timeDeltas: readonly number[];
}

export interface Cost {
  readonly name: string;
  /** Share of the time in which the process was not idle. */
  readonly share: number;
}

const TOP = 40;

export function readCosts(
  file: string,
  root: string,
): { readonly functions: readonly Cost[]; readonly parts: readonly Cost[] } {
  const { nodes, samples, timeDeltas } = JSON.parse(readFileSync(file, 'utf8')) as Profile;
  const byId = new Map(nodes.map((node) => [node.id, node.callFrame]));
  const functions = new Map<string, number>();
  const parts = new Map<string, number>();
  let all = 0;
  samples.forEach((id, index) => {
    const frame = byId.get(id);
    if (frame === undefined || frame.functionName === '(idle)') return;
    const time = timeDeltas[index] ?? 0;
    const path = toRelativePath(frame.url, root);
    all += time;
    add(functions, `${frame.functionName || '(anonymous)'} ${path}:${frame.lineNumber + 1}`, time);
    add(parts, path === '' ? frame.functionName : getModule(path), time);
  });
  const sorted = (costs: ReadonlyMap<string, number>): Cost[] =>
    [...costs]
      .map(([name, time]) => ({ name, share: time / all }))
      .toSorted((a, b) => b.share - a.share)
      .slice(0, TOP);
  return { functions: sorted(functions), parts: sorted(parts) };
}

const add = (costs: Map<string, number>, name: string, time: number): void =>
  void costs.set(name, (costs.get(name) ?? 0) + time);

const toRelativePath = (url: string, root: string): string =>
  url.startsWith('file://') ? relative(root, new URL(url).pathname) : url.startsWith('/') ? relative(root, url) : url;

/** A package, a folder of gatehouse, or a Node module. */
const getModule = (path: string): string =>
  /(?:^|\/)node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(path)?.[1] ??
  /^(node:[^/]+)/.exec(path)?.[1] ??
  path.split('/').slice(0, -1).join('/');

export const formatCosts = (costs: readonly Cost[]): string =>
  costs.map(({ name, share }) => `${(share * 100).toFixed(1).padStart(5)} %  ${name}`).join('\n');
