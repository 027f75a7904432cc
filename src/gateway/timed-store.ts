import { observe } from '../observability/metric-registry.ts';
import type { Metrics } from '../observability/metrics.ts';
import type { RecordStore } from '../ports/record-store.ts';
import type { Store } from '../ports/store.ts';

/** The same store, with how long it took and how often it failed. */
export function timedStore<S extends Store>(store: S, metrics: Metrics): S {
  const timed = (op: string): (<T>(work: () => Promise<T>) => Promise<T>) => {
    const seconds = metrics.histogram('gatehouse_store_operation_duration_seconds', op);
    const errors = metrics.counter('gatehouse_store_errors_total', op);
    return async (work) => {
      const began = performance.now();
      try {
        return await work();
      } catch (error) {
        errors.value += 1;
        throw error;
      } finally {
        observe(seconds, (performance.now() - began) / 1_000);
      }
    };
  };
  const records = <T>(name: string, of: RecordStore<T>): RecordStore<T> => {
    const [read, create, replace] = [
      timed(`${name}.read`),
      timed(`${name}.create`),
      timed(`${name}.replace`),
    ];
    return {
      ...of,
      read: (id) => read(() => of.read(id)),
      create: (...given) => create(() => of.create(...given)),
      replace: (...given) => replace(() => of.replace(...given)),
    };
  };
  const announce = timed('revocations.announce');
  const { revocations } = store;
  return {
    ...store,
    grants: records('grants', store.grants),
    devices: records('devices', store.devices),
    userCodes: records('userCodes', store.userCodes),
    revocations: {
      ...revocations,
      isRevoked: (bearer) => revocations.isRevoked(bearer),
      announce: (revocation) => announce(() => revocations.announce(revocation)),
    },
  };
}
