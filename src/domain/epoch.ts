/** Seconds since 1970. `now` has fractions; stored and sent times are whole numbers. The domain never reads a clock. */
export type Epoch = number;
