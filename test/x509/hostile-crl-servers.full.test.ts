import { testHostileCrlServers } from './hostile-crl-servers.ts';

/** The largest `maxSize`. */
testHostileCrlServers(64);
