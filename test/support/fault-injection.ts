import { Fault } from '../../src/ports/fault.ts';

export const away = (): Fault => new Fault('store_unavailable', 'the store is away');

/** How one operation of the store fails: before it happened, or after it happened and before it was answered. */
export type Failure = 'does not happen' | 'answer lost';

/** Makes one operation fail while `run` runs; the part itself stays the real one. */
export async function failing<Part extends object, T>(
  part: Part,
  name: keyof Part,
  failure: Failure,
  run: () => Promise<T>,
  error: () => Error = away,
): Promise<T> {
  const real = part[name] as (...args: unknown[]) => Promise<unknown>;
  const faulty = async (...args: unknown[]): Promise<never> => {
    if (failure === 'answer lost') await Reflect.apply(real, part, args);
    throw error();
  };
  Object.assign(part, { [name]: faulty });
  try {
    return await run();
  } finally {
    Object.assign(part, { [name]: real });
  }
}
