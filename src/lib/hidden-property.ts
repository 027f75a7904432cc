interface HiddenProperty<K extends object, V> {
  get(object: K): V | undefined;
  set(object: K, value: V): void;
}

/** A constructor that returns an existing object: derived classes add their private fields to it. */
const Existing = function <T extends object>(object: T): T {
  return object;
} as unknown as new (
  object: object,
) => object;

/**
 * A value that belongs to an object of another module. Used like a `WeakMap`, but the value is in the object itself: the garbage
 * collector handles each entry of a `WeakMap` on its own, which costs microseconds where objects come and go by the thousand.
 */
export function createHiddenProperty<K extends object, V>(): HiddenProperty<K, V> {
  class Field extends Existing {
    #value: V;

    constructor(object: K, value: V) {
      super(object);
      this.#value = value;
    }

    static get(object: object): V | undefined {
      return #value in object ? object.#value : undefined;
    }

    static set(object: object, value: V): object {
      if (!(#value in object)) return new Field(object as K, value);
      object.#value = value;
      return object;
    }
  }
  return Field;
}
