/** The members that are not undefined, for optional properties that must be absent rather than undefined. */
export const omitUndefined = <T extends object>(
  members: T,
): { readonly [Name in keyof T]?: Exclude<T[Name], undefined> } =>
  Object.fromEntries(Object.entries(members).filter(([, value]) => value !== undefined)) as T;
