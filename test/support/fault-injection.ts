import { Fault } from '../../src/ports/fault.ts';

export const storeUnreachable = (): Fault => new Fault('store_unavailable', 'the store is unreachable');

/** Whether the failing store operation was executed. */
export type Failure = 'not executed' | 'response lost';

/** Makes one operation of the real object fail while `run` runs. */
export async function withFailure<Part extends object, T>(
  target: Part,
  name: keyof Part,
  failure: Failure,
  run: () => Promise<T>,
  error: () => Error = storeUnreachable,
): Promise<T> {
  const original = target[name] as (...args: unknown[]) => Promise<unknown>;
  const faulty = async (...args: unknown[]): Promise<never> => {
    if (failure === 'response lost') await Reflect.apply(original, target, args);
    throw error();
  };
  Object.assign(target, { [name]: faulty });
  try {
    return await run();
  } finally {
    Object.assign(target, { [name]: original });
  }
}
