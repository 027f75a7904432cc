/** Seconds since 1970. `now` carries milliseconds as a fraction; what is stored or sent is a whole number. The domain never reads a clock. */
export type Epoch = number;

export const wholeSeconds = (time: Epoch): Epoch => Math.floor(time);
