import { ClientAccounts, type ConnectionAccount } from '../../src/listener/client-accounts.ts';

/** An account of its own, with a limit that no test reaches. */
export const openConnectionAccount = (): ConnectionAccount =>
  new ClientAccounts(2 ** 40).openConnection('127.0.0.1', () => {});
