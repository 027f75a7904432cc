/**
 * The smallest and the largest of any number of values. With more than some 100,000 arguments, `Math.min` throws a RangeError, and
 * many arrays are as long as a client, an API or a store makes them.
 */
export function smallest(values: Iterable<number>, initial = Number.POSITIVE_INFINITY): number {
  let result = initial;
  for (const value of values) result = Math.min(result, value);
  return result;
}

export function largest(values: Iterable<number>, initial = Number.NEGATIVE_INFINITY): number {
  let result = initial;
  for (const value of values) result = Math.max(result, value);
  return result;
}
