import { Fault } from '../../ports/fault.ts';
import type { ConsoleHandler, ConsoleRequest } from '../context.ts';
import { type Figures, parseRange, renderFigures, renderOverview } from '../views/overview.ts';

export const showOverview: ConsoleHandler = async (request) => {
  const range = parseRange(request.query.get('range'));
  return {
    title: 'Overview',
    body: renderOverview(range, renderFigures(range, await readFigures(request))),
  };
};

/** The part that the script refreshes. */
export const showFigures: ConsoleHandler = async (request) => ({
  fragment: renderFigures(parseRange(request.query.get('range')), await readFigures(request)),
});

async function readFigures({ deps, history, runChecks }: ConsoleRequest): Promise<Figures> {
  const [checks, replicas] = await Promise.all([runChecks(), readReplicas(deps)]);
  return { now: deps.now(), history, checks, replicas };
}

async function readReplicas({ listReplicas }: ConsoleRequest['deps']): Promise<Figures['replicas']> {
  try {
    return await listReplicas();
  } catch (error) {
    if (error instanceof Fault) return 'unavailable';
    throw error;
  }
}
