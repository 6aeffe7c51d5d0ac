// SPDX-License-Identifier: MIT OR Apache-2.0
// TigerBeetle's client in Node up to its first message: it makes its ring, connects to what it takes for a server, and sends.
//
// usage: node tigerbeetle.js

'use strict';

const net = require('node:net');
const { createClient } = require('tigerbeetle-node');

const MESSAGE = 512; // bytes: what the client sends first

const server = net.createServer((peer) => {
  let received = 0;
  peer.on('data', (data) => {
    received += data.length;
    if (received >= MESSAGE) {
      console.log('the client sent', received, 'bytes');
      process.exit(0); // the client waits for an answer, and nobody is there to give one
    }
  });
});

server.listen(0, '127.0.0.1', () => {
  const address = `127.0.0.1:${server.address().port}`;
  const client = createClient({ cluster_id: 0n, replica_addresses: [address] });
  client.lookupAccounts([1n]);
});
