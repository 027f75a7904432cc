/** Names that client certificates of `gatehouse dev-ca` cannot have: the folder has these files. Some file systems ignore letter case. */
export const isReservedName = (name: string): boolean => /^(?:ca|server|crl|.*-key)$/i.test(name);
