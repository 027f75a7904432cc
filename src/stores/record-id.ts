/** LMDB keys have a length. The stores agree, so that what one keeps can move to the other. */
const MAX_LENGTH = 480;

/** What is not well-formed text would not come back as it went in. */
export const isUsableId = (id: string): boolean =>
  id.length > 0 && id.length <= MAX_LENGTH && id.isWellFormed();
