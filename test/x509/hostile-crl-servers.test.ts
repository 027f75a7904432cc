import { testHostileCrlServers } from './hostile-crl-servers.ts';

testHostileCrlServers(12);
